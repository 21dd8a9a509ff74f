// The gateway's page: asks a question, shows the answer as it comes and the tree as it grows.
// Text of a model reaches the page as textContent and canvas text only.
const shown = { url: null, fetching: false, again: false };
let asking = null;

function authorized() {
  const key = byId("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function loadModels() {
  const answer = await fetch("/v1/models", { headers: authorized() });
  byId("key-label").hidden = answer.status !== 401 && !byId("key").value;
  if (!answer.ok) return;
  const names = (await answer.json()).data.map((model) => model.id);
  byId("model").replaceChildren(...names.map((name) => new Option(name, name)));
  byId("model").value = names.find((name) => name.endsWith(":ets")) ?? names[names.length - 1];
}

// Fetches the tree again and draws it; while one fetch is under way further ones are joined into one.
async function refresh() {
  if (!shown.url) return;
  shown.again = shown.fetching;
  if (shown.fetching) return;
  shown.fetching = true;
  const { url } = shown, answer = await fetch(`${url}/data`);
  shown.fetching = false;
  if (url !== shown.url) return;
  if (answer.ok) showTree(await answer.json());
  else byId("tree-note").textContent = "This tree is not kept any more.";
  if (shown.again) refresh();
}

function showTree(run) {
  runs[0] = run;
  const question = run.questions[0], { strategy, width } = run.config.search, grows = run.state === "growing";
  byId("trees").hidden = false;
  byId("tree-note").textContent = question
    ? `${run.model}: ${strategy} at width ${width}, ${plural(question.parents.length, "step")}, ${plural(question.generated_tokens, "token")}${grows ? " so far" : ""}.`
    : "The tree has not begun to grow.";
  byId("explorer").hidden = !question || !question.waves.length;
  if (byId("explorer").hidden) return;
  showRun(0);
  byId("vote").hidden = run.state !== "done";
  const elected = question.choices[run.config.search.vote][0];
  byId("verdict").textContent = grows ? "It grows." : run.state === "failed" ? "The search was given up." : elected === null ? "No branch gave an answer." : `Elected answer: ${elected}`;
}

function showError(text) {
  byId("answer").textContent = text;
  byId("answer").className = "wrong";
}

// Reads the events of a stream; a comment, which keeps the connection alive, has no data.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

function showEvent(event) {
  if (event.error) return showError(event.error.message);
  const choice = event.choices[0], delta = choice?.delta ?? {};
  if (choice?.palmette?.tree_url && !shown.url) shown.url = choice.palmette.tree_url;
  if (delta.reasoning) byId("reasoning").textContent += delta.reasoning;
  if (delta.content && choice.index === 0) byId("answer").textContent += delta.content;
  if (choice?.finish_reason) {
    const { score, tokens, kv_peak: peak } = choice.palmette;
    byId("counts").textContent = [
      score === null ? "" : `score ${share(score)}`, `${count(tokens)} tokens in all branches`, `${count(peak)} KV tokens at the most`,
      choice.finish_reason === "length" ? "ended by a limit" : "",
    ].filter(Boolean).join(" · ");
    byId("thoughts").hidden = !byId("reasoning").textContent;
  }
  return undefined;
}

async function ask() {
  asking = new AbortController();
  Object.assign(shown, { url: null, again: false });
  byId("send").disabled = !(byId("stop").disabled = false);
  for (const id of ["answer", "reasoning", "counts"]) byId(id).textContent = "";
  byId("answer").className = "";
  byId("outcome").hidden = byId("thoughts").hidden = false;
  byId("trees").hidden = true;
  const body = { model: byId("model").value, messages: [{ role: "user", content: byId("text").value }], stream: true };
  if (byId("effort").value) body.reasoning_effort = byId("effort").value;
  try {
    const answer = await fetch("/v1/chat/completions", {
      method: "POST", signal: asking.signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...authorized() },
    });
    if (answer.ok) {
      for await (const event of eventsOf(answer.body)) {
        showEvent(event);
        refresh();
      }
    } else showError((await answer.json()).error.message);
  } catch (error) {
    showError(error.name === "AbortError" ? "Stopped." : "The gateway cannot be reached.");
  }
  byId("send").disabled = !(byId("stop").disabled = true);
  await refresh();
}

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
byId("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit(); });
byId("stop").addEventListener("click", () => asking?.abort());
byId("key").addEventListener("change", loadModels);
let lastWidth = innerWidth;
function redraw() {
  if (!explorer.tree) return;
  view.measure();
  placeSlider();
  drawKv();
}
addEventListener("resize", () => {
  if (innerWidth !== lastWidth) redraw();
  lastWidth = innerWidth;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

async function watch() {
  await refresh();
  if (runs[0]?.state === "growing") setTimeout(watch, 500);
}

if (location.pathname.startsWith("/trees/")) {
  byId("ask").hidden = true;
  byId("title").textContent = "A tree of this gateway";
  shown.url = location.pathname;
  watch();
} else loadModels();
