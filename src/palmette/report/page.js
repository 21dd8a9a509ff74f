"use strict";
// Shared by all scripts: the data, elements, texts; then the header and the table of results.
// Model text is put into the page with textContent and canvas text only, so that no part of it can run.
const { runs, rows, curves } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function svgElement(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const share = (value) => (value === null || value === undefined ? "" : value.toFixed(3));
const count = (value) => Math.round(value).toLocaleString("en-US");
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many ?? `${one}s`}`;
const outcomeText = (outcome) => ({ timed_out: "timed out" })[outcome] ?? outcome ?? "not judged";
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
  const setup = ({ config: { task, policy, reward } }) => `${task.name}; policy ${policy.model}, reward model ${reward.model ?? "none"}, temperature ${policy.temperature}`;
  const setups = [...new Set(runs.map(setup))];
  byId("about").textContent = setups.join(" | ") + (setups.length > 1 ? ". These runs differ in task, models or temperature: compare with care." : "");
  const configs = runs.map((run) => new Map(flat(run.config)));
  const list = byId("settings").appendChild(element("dl"));
  for (const key of new Set(configs.flatMap((config) => [...config.keys()]))) {
    if (key === "out") continue;
    const pair = list.appendChild(element("div"));
    pair.append(element("dt", key), element("dd", [...new Set(configs.map((config) => config.get(key) ?? "none"))].join(", ")));
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
  const headings = ["strategy", "width", "questions", "one leaf", "best", "majority", "weighted", "any leaf", "best_of_n, same tokens", "tokens", "KV mean", "KV peak", "KV unshared", "seconds"];
  const lines = rows.map((row) => [
    row.strategy, String(row.width), count(row.questions),
    share(row.single), ...["best", "majority", "weighted"].map((vote) => withInterval(row, vote)), share(row.any), share(row.bon_same_tokens),
    count(row.generated_tokens), count(row.mean_kv_tokens), count(row.peak_kv_tokens), count(row.peak_separate_kv_tokens), row.seconds.toFixed(1),
  ]);
  byId("table").append(tableOf(headings, lines));
  const seeds = Math.max(...rows.map((row) => row.seeds));
  const measured = curves.length
    ? `best_of_n, same tokens: the accuracy of best_of_n (${joined([...new Set(rows.map((row) => row.vote))])} vote) with as many branches as generate the row's number of tokens, interpolated between measured points; blank outside of their range.`
    : "There is no best_of_n run to compare with at the same number of tokens.";
  byId("table-note").textContent = `Accuracy with its 95% interval${seeds > 1 ? `, ${seeds} seeds pooled` : ""}. One leaf: a leaf taken at random. Any leaf: at least one leaf is correct, the most a vote can reach. Tokens are generated tokens of a question, pruned branches included. KV counts the tokens on the paths of one question's tree in a wave, each step once: mean over waves, and peak of the largest tree; unshared is the peak if every branch kept its own copy of its path. ${measured}`;
}
