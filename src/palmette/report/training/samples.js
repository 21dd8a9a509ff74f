// The samples of the selected update: each response with its reward, the parts of it, and its advantage; and their tree.
const signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(3)}`;

function factOf(list, name, text, className) {
  const pair = list.appendChild(element("div"));
  pair.append(element("dt", name), element("dd", text, className));
}

function answerOf(response) {
  const item = element("li"), facts = item.appendChild(element("dl")), parts = Object.entries(response.parts);
  factOf(facts, "reward", response.reward === null ? "none" : response.reward.toFixed(3));
  if (response.advantage === null) factOf(facts, "advantage", "not learned from");
  else factOf(facts, "advantage", signed(response.advantage), toneOf(response.advantage));
  if (parts.length > 1) for (const [name, value] of parts) factOf(facts, name, value === null ? "none" : value.toFixed(3));
  for (const [name, value] of Object.entries(response.logged)) factOf(facts, name, value);
  if (response.cut) factOf(facts, "cut at the limit", "");
  item.append(element("code", response.text));
  return item;
}

const toneOf = (advantage) => (advantage > 0 ? "better" : advantage < 0 ? "worse" : "");
const MOST_LEVELS = 12;
const STATES = { pruned: "pruned", stopped: "cut at the limit", open: "cut at the limit" };

// One branch of a tree: indented once for each branching above it, marked by the sign of its advantage.
function stepOf(step) {
  const item = element("li"), guides = item.appendChild(element("span", undefined, "guides"));
  guides.style.setProperty("--level", Math.min(step.level, MOST_LEVELS));
  item.append(element("span", "", `mark ${toneOf(step.advantage)}`), element("code", step.text));
  const facts = item.appendChild(element("dl"));
  if (step.reward !== null) factOf(facts, "reward", step.reward.toFixed(3));
  else if (step.value !== null) factOf(facts, "value", step.value.toFixed(3));
  if (step.advantage !== null) factOf(facts, "advantage", signed(step.advantage), toneOf(step.advantage));
  if (STATES[step.state]) factOf(facts, STATES[step.state], "");
  return item;
}

function treeOf({ steps, left_out: leftOut }) {
  const block = element("details", undefined, "grown"), list = element("ol");
  block.open = true;
  block.append(element("summary", `Tree of ${plural(steps.length + leftOut, "branch", "branches")}${leftOut ? `, the first ${count(steps.length)} shown` : ""}`), list);
  list.tabIndex = 0;  // It scrolls, which a keyboard has to reach.
  list.append(...steps.map(stepOf));
  return block;
}

function showSamples() {
  const run = runs[chosen.run], update = run.updates[chosen.place] ?? 0;
  const entry = run.samples.filter((sample) => sample.update <= update).pop() ?? run.samples[0];
  byId("samples-note").textContent = !entry ? "No samples were recorded."
    : `Update ${entry.update}: the first responses to the first questions of the update. The advantage is the mean over a response's tokens.`
      + (entry.questions.some(({ tree }) => tree) ? " In a tree, steps without an alternative are one branch. The value of a branch is the mean over the values of those below it, that of a last one its reward." : "")
      + (run.samples_every > 1 ? ` This page has the samples of every ${count(run.samples_every)}th update, because it would be too large with all of them.` : "");
  byId("samples").replaceChildren(...(entry?.questions ?? []).map((question) => {
    const block = element("article", undefined, "asked"), list = element("ol", undefined, "answers");
    list.append(...question.responses.map(answerOf));
    block.append(element("p", question.prompt));
    if (question.tree) block.append(treeOf(question.tree));
    block.append(list);
    return block;
  }));
}
