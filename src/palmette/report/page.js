"use strict";
// Text of models reaches the page through textContent and canvas text alone.
const { runs, rows, curves } = JSON.parse(document.getElementById("data").textContent);
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

const share = (value) => (value === null || value === undefined ? "" : value.toFixed(3));
const count = (value) => Math.round(value).toLocaleString("en-US");
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many ?? `${one}s`}`;
const outcomeText = (outcome) => ({ correct: "right", timed_out: "timed out" })[outcome] ?? outcome ?? "not judged again";
const runLabel = ({ config: { search, seed }, name }) =>
  `${search.strategy} ${search.width}, seed ${seed}${name === `${search.strategy}-${search.width}-seed${seed}` ? "" : ` · ${name}`}`;

const joined = (names) => (names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`);

function flat(values, prefix = "") {
  return Object.entries(values).flatMap(([key, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${prefix}${key}.`) : [[prefix + key, String(value ?? "none")]]);
}

function showHeader() {
  const { config } = runs[0];
  byId("title").textContent = runs.length === 1
    ? `${config.search.strategy} at width ${config.search.width}`
    : `${joined([...new Set(rows.map((row) => row.strategy))])}, ${plural(runs.length, "run")}`;
  const told = ({ config: { task, policy, reward } }) => `${task.name}; policy ${policy.model}, reward model ${reward.model ?? "none"}, temperature ${policy.temperature}`;
  const kinds = [...new Set(runs.map(told))];
  byId("about").textContent = kinds.join(" | ") + (kinds.length > 1 ? ". These runs do not share their settings: compare with care." : "");
  const all = runs.map((run) => new Map(flat(run.config)));
  const list = byId("settings").appendChild(element("dl"));
  for (const key of new Set(all.flatMap((one) => [...one.keys()]))) {
    if (key === "out") continue;
    const pair = list.appendChild(element("div"));
    pair.append(element("dt", key), element("dd", [...new Set(all.map((one) => one.get(key) ?? "none"))].join(", ")));
  }
}

function tableOf(headings, lines) {
  const table = element("table");
  const head = table.appendChild(element("thead")).appendChild(element("tr"));
  for (const name of headings) head.appendChild(element("th", name)).scope = "col";
  const body = table.appendChild(element("tbody"));
  for (const cells of lines) {
    const row = body.appendChild(element("tr"));
    cells.forEach((cell, place) => {
      const made = cell instanceof Node ? cell : element(place === 0 ? "th" : "td", cell);
      if (made.tagName === "TH") made.scope = "row";
      row.append(made);
    });
  }
  return table;
}

function withInterval(row, vote) {
  const cell = element("td", share(row[vote]));
  cell.append(element("small", `${row[`${vote}_low`].toFixed(2)} – ${row[`${vote}_high`].toFixed(2)}`));
  return cell;
}

function showTable() {
  const headings = ["strategy", "width", "questions", "one leaf", "best", "majority", "weighted", "any leaf", "best_of_n, same tokens", "tokens", "KV mean", "KV peak", "unshared", "seconds"];
  const lines = rows.map((row) => [
    row.strategy, String(row.width), count(row.questions),
    share(row.single), ...["best", "majority", "weighted"].map((vote) => withInterval(row, vote)), share(row.any), share(row.bon_same_tokens),
    count(row.generated_tokens), count(row.mean_kv_tokens), count(row.peak_kv_tokens), count(row.peak_separate_kv_tokens), row.seconds.toFixed(1),
  ]);
  byId("table").append(tableOf(headings, lines));
  const seeds = Math.max(...rows.map((row) => row.seeds));
  const measured = curves.length
    ? `best_of_n, same tokens: the accuracy of best_of_n (${joined([...new Set(rows.map((row) => row.vote))])} vote) with as many branches as cost the row's tokens, between its measured points; blank beyond them.`
    : "No best_of_n run is among these, so there is no accuracy at the same tokens to compare with.";
  byId("table-note").textContent = `Accuracy with its 95% interval${seeds > 1 ? `, ${seeds} seeds pooled` : ""}. One leaf: a leaf picked blindly. Any leaf: what a perfect vote would reach. Tokens and KV tokens are those of one question; unshared is the KV peak if every branch kept a copy of its path. ${measured}`;
}
