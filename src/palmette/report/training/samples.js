// The samples of the selected update: each response with its reward, the parts of it, and its advantage.
const signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(3)}`;

function factOf(list, name, text, className) {
  const pair = list.appendChild(element("div"));
  pair.append(element("dt", name), element("dd", text, className));
}

function answerOf(response) {
  const item = element("li"), facts = item.appendChild(element("dl")), parts = Object.entries(response.parts);
  factOf(facts, "reward", response.reward === null ? "none" : response.reward.toFixed(3));
  if (response.advantage === null) factOf(facts, "advantage", "not learned from");
  else factOf(facts, "advantage", signed(response.advantage), response.advantage > 0 ? "better" : response.advantage < 0 ? "worse" : "");
  if (parts.length > 1) for (const [name, value] of parts) factOf(facts, name, value === null ? "none" : value.toFixed(3));
  if (response.cut) factOf(facts, "cut at the limit", "");
  item.append(element("code", response.text));
  return item;
}

function showSamples() {
  const run = runs[chosen.run], update = run.updates[chosen.place] ?? 0;
  const entry = run.samples.filter((sample) => sample.update <= update).pop() ?? run.samples[0];
  byId("samples-note").textContent = !entry ? "No samples were recorded."
    : `Update ${entry.update}: the first responses to the first questions of the update. The advantage is the mean over a response's tokens.`
      + (run.samples_every > 1 ? ` This page has the samples of every ${count(run.samples_every)}th update, because it would be too large with all of them.` : "");
  byId("samples").replaceChildren(...(entry?.questions ?? []).map((question) => {
    const block = element("article", undefined, "asked"), list = element("ol", undefined, "answers");
    list.append(...question.responses.map(answerOf));
    block.append(element("p", question.prompt), list);
    return block;
  }));
}
