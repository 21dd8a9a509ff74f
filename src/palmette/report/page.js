"use strict";
// Shared by all scripts of a page: the data, elements, texts, tables.
// Model text is put into the page with textContent and canvas text only, so that no part of it can run.
const data = JSON.parse(document.getElementById("data").textContent), { runs } = data;
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
const joined = (names) => (names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`);

function flat(values, prefix = "") {
  return Object.entries(values).flatMap(([key, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${prefix}${key}.`) : [[prefix + key, String(value ?? "none")]]);
}

function showSettings() {
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
