// The header and the table of results of training runs; then the event handlers of the page and its first display.
function showHeader() {
  const names = (list) => joined([...new Set(list)]);
  byId("title").textContent = `${names(runs.map(({ config }) => config.train.algorithm))} on ${names(runs.map(({ config }) => config.task.name))}${runs.length > 1 ? `, ${plural(runs.length, "run")}` : ""}`;
  const setup = ({ config: { policy, search, train } }) =>
    `policy ${policy.model}, ${train.method === "lora" ? `LoRA of rank ${train.lora_rank}` : "all weights"}; ${plural(train.questions, "question")} an update, ${search.strategy} at width ${search.width}, at most ${count(search.total_tokens)} tokens; credit ${train.credit}, learning rate ${shortNumber(train.learning_rate)}`;
  byId("about").textContent = [...new Set(runs.map(setup))].join(" | ");
  showSettings();
}

function accuracyCell(told, withUpdate) {
  if (!told) return "";
  const cell = element("td", percent(told.single));
  cell.append(element("small", `± ${percent(told.error)}${withUpdate ? `, update ${told.update}` : ""}`));
  return cell;
}

function showTable() {
  const lines = runs.map((run) => {
    const { summary } = run;
    return [
      runLabel(run), `${count(summary.updates)} of ${count(run.config.train.updates)}`, share(summary.first_reward), share(summary.last_reward),
      accuracyCell(summary.before), accuracyCell(summary.last, true), accuracyCell(summary.best, true),
      count(summary.tokens), secondsText(summary.seconds), summary.peak === null ? "" : bytesText(summary.peak),
    ];
  });
  byId("table").append(tableOf(["run", "updates", "reward, first", "reward, last", "test before", "test, last", "test, best", "tokens", "time of updates", "peak"], lines));
  const kept = runs.filter((run) => run.checkpoint).map((run) => `${runs.length > 1 ? `${runLabel(run)}: ` : ""}${run.checkpoint.folder}, ${bytesText(run.checkpoint.bytes)}`);
  byId("table-note").textContent = "Rewards are means over the first and the last tenth of the updates, ten at the most. Test: share of correct responses with one standard error over questions. Tokens are generated tokens; time does not include loading, evaluations and checkpoints."
    + (kept.length ? ` Last checkpoint: ${kept.join("; ")}.` : "");
}

function showRuns() {
  byId("runs").hidden = runs.length < 2;
  byId("runs").replaceChildren(...runs.map((run, place) => {
    const entry = element("span"), sign = svgElement("svg", { width: 22, height: 12, viewBox: "0 0 22 12", "aria-hidden": "true" });
    sign.append(svgElement("line", { x1: 0, x2: 22, y1: 6, y2: 6, stroke: runColor(place), "stroke-width": 2.5, "stroke-dasharray": DASHES[Math.floor(place / 8) % 4] }));
    entry.append(sign, runLabel(run));
    return entry;
  }));
}

function selectUpdate(place) {
  const { updates, config } = runs[chosen.run], last = updates.length - 1;
  chosen.place = Math.max(0, Math.min(last, place));
  const name = last < 0 ? "No update yet" : `Update ${count(updates[chosen.place])} of ${count(config.train.updates)}`;
  byId("update").max = Math.max(0, last);
  byId("update").value = chosen.place;
  byId("update").disabled = last < 1;
  byId("update").setAttribute("aria-valuetext", name);
  byId("update-name").textContent = name;
  for (const show of cursors) show();
  showSamples();
}

function selectRun(place) {
  const before = runs[chosen.run].updates[chosen.place];
  chosen.run = place;
  selectUpdate(nearestPlace(runs[place].updates, before ?? 0));
  showPhases();
  showMemory(place);
}

function redraw() {
  showCurves();
  showPhases();
  showMemory(chosen.run);
}

byId("run").addEventListener("change", (event) => selectRun(Number(event.target.value)));
byId("against").addEventListener("change", (event) => { chosen.against = event.target.value; showCurves(); });
byId("update").addEventListener("input", (event) => selectUpdate(Number(event.target.value)));
byId("more").addEventListener("toggle", showCurves);
let shownWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== shownWidth) redraw();  // On a phone, scrolling hides the address bar, which changes the height only.
  shownWidth = innerWidth;
});

showHeader();
showTable();
showNotices();
runs.forEach((run, place) => byId("run").append(new Option(runLabel(run), place)));
showRuns();
showCurves();
selectUpdate(runs[0].updates.length - 1);
showPhases();
showMemory(0);
