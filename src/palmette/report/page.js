"use strict";
// Text of models reaches the page through textContent alone.
const runs = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawing(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const share = (accuracy) => (accuracy ? accuracy.accuracy.toFixed(3) : "");
const count = (value) => Math.round(value).toLocaleString("en-US");
const label = (run) => `${run.config.search.strategy} ${run.config.search.width}`;

function showTable() {
  const table = element("table");
  const head = table.appendChild(element("tr"));
  for (const name of ["strategy", "one leaf", "best", "majority", "weighted", "any leaf", "tokens", "KV mean", "KV peak", "unshared", "seconds"]) head.append(element("th", name));
  for (const run of runs) {
    const { results, cost } = run;
    const row = table.appendChild(element("tr"));
    const cells = [label(run), share(results.single), share(results.votes.best), share(results.votes.majority), share(results.votes.weighted), share(results.any),
      count(results.generated_tokens), count(results.mean_kv_tokens), count(results.peak_kv_tokens), count(results.peak_separate_kv_tokens), cost.seconds.toFixed(1)];
    for (const cell of cells) row.append(element("td", cell));
  }
  byId("table").append(table);
}

function showPlot() {
  const shown = runs.filter((run) => run.results.votes.weighted);
  const width = Math.max(320, Math.min(720, byId("plot").clientWidth));
  const height = Math.max(260, 60 + 18 * shown.length), left = 44, right = 132, top = 16, bottom = 44;
  const most = 1.1 * Math.max(1, ...shown.map((run) => run.results.mean_kv_tokens));
  const x = (kv) => left + (kv / most) * (width - left - right);
  const y = (accuracy) => height - bottom - accuracy * (height - top - bottom);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": "Accuracy against KV tokens" });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(drawing("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    svg.append(drawing("text", { class: "soft", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(2)));
  }
  for (const part of [0, 0.5, 1]) svg.append(drawing("text", { class: "soft", x: x(part * most), y: height - bottom + 18, "text-anchor": "middle" }, count(part * most)));
  svg.append(drawing("text", { class: "soft", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "mean KV tokens"));
  shown.sort((a, b) => b.results.votes.weighted.accuracy - a.results.votes.weighted.accuracy);
  // Labels stand in a column of their own, best on top, pushed apart so that none covers another.
  const gap = 18, lowest = height - bottom - gap * (shown.length - 1);
  let place = -Infinity;
  shown.forEach((run, rank) => {
    const vote = run.results.votes.weighted;
    const at = x(run.results.mean_kv_tokens), dot = y(vote.accuracy);
    place = Math.min(Math.max(dot, place + gap), lowest + gap * rank);
    svg.append(drawing("line", { class: "axis", x1: at, x2: width - right + 6, y1: dot, y2: place }));
    svg.append(drawing("line", { class: "bar", x1: at, x2: at, y1: y(vote.low), y2: y(vote.high) }));
    svg.append(drawing("circle", { class: "dot", cx: at, cy: dot, r: 5 }));
    svg.append(drawing("text", { x: width - right + 10, y: place + 4 }, label(run)));
  });
  byId("plot").append(svg);
}

function showSteps(solution) {
  const list = element("ol", undefined, "steps");
  for (const [text, score] of solution.steps) {
    const item = list.appendChild(element("li"));
    item.append(element("code", text.replace(/\n+$/, "")), element("span", score === null ? "" : score.toFixed(3)));
  }
  return list;
}

function showQuestions(run) {
  const holder = byId("questions");
  holder.replaceChildren();
  for (const story of run.stories) {
    const box = holder.appendChild(element("details"));
    const [answer, outcome] = story.choices[run.config.search.vote];
    const right = outcome === "correct";
    const head = box.appendChild(element("summary"));
    head.append(element("span", right ? "✓ " : "✗ ", right ? "right" : "wrong"), element("span", story.prompt.slice(0, 300)));
    box.addEventListener("toggle", () => {
      if (!box.open || box.childElementCount > 1) return;
      box.append(element("p", `answer ${answer ?? "none"} (${outcome.replace("_", " ")}), reference ${story.reference}; ${count(story.tokens)} tokens, KV peak ${count(story.kv)} (${count(story.unshared)} unshared); ${story.leaves} leaves`));
      for (const solution of story.solutions) {
        box.append(element("p", `node ${solution.node}, score ${solution.score.toFixed(3)}${solution.finished ? "" : ", unfinished"}`), showSteps(solution));
      }
    });
  }
}

const told = (run) => `${run.config.task.name}, policy ${run.config.policy.model}, reward ${run.config.reward.model ?? "none"}, temperature ${run.config.policy.temperature}`;
const settings = [...new Set(runs.map(told))];
byId("about").textContent = `${runs.length} run${runs.length === 1 ? "" : "s"}: ${settings.join("; ")}${settings.length > 1 ? ". These runs do not share their settings: compare with care." : ""}`;
runs.forEach((run, place) => byId("run").append(new Option(label(run), place)));
byId("run").addEventListener("change", (event) => showQuestions(runs[event.target.value]));
showTable();
showPlot();
showQuestions(runs[0]);
