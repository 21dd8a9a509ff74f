// The explorer: selects run, question, wave and node, and shows the texts and tables around the tree.
const outcomeText = (outcome) => ({ timed_out: "timed out" })[outcome] ?? outcome ?? "not judged";
const MOST_CHIPS = 12, MOST_CANDIDATES = 8;
const explorer = { run: null, question: null, tree: null, wave: 0 };
const view = new TreeView(byId("view"), byId("tall"), byId("canvas"), (node) => pick(node));

function showRun(place) {
  explorer.run = runs[place];
  const { questions, results, config } = explorer.run;
  const missing = results.questions - questions.length;
  byId("left-out").hidden = missing <= 0;
  byId("left-out").textContent = `This page has the trees of the first ${plural(questions.length, "question")}; ${count(missing)} more are left out because the page would be too large. The results above count all questions.`;
  byId("question").replaceChildren(...questions.map((question, index) => {
    const sign = verdictSign(question.choices[config.search.vote][1]);
    return new Option(`${sign} ${index + 1}. ${shortened(question.prompt, 90)}`, index);
  }));
  byId("explorer").hidden = !questions.length;
  if (questions.length) showQuestion(Math.min(questions.length - 1, Math.max(0, explorer.index ?? 0)));
}

// A question without a reference answer is neither right nor wrong.
function verdictSign(outcome) {
  return outcome === null ? "–" : outcome === "correct" ? "✓" : "✗";
}

function showQuestion(index) {
  const { run } = explorer, question = run.questions[index], tree = layOut(question);
  Object.assign(explorer, { index, question, tree });
  byId("question").value = index;
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === run.questions.length - 1;
  byId("prompt").textContent = question.prompt;
  const [answer, outcome] = question.choices[run.config.search.vote];
  const kind = outcome === null ? "" : outcome === "correct" ? "right" : "wrong";
  byId("verdict").replaceChildren(
    element("span", `${verdictSign(outcome)} `, kind),
    `Elected answer: ${answer ?? "none"}, `, element("span", outcome === null ? "not judged" : outcomeText(outcome), kind), question.reference === null ? "; there is no reference answer." : `; the reference answer is ${question.reference}.`);
  byId("wave").max = question.waves.length;
  showLegend();
  showVotes();
  view.show(tree);
  placeSlider();
  view.picked = view.wanted = elected() ?? 0;
  goToWave(question.waves.length);
  view.reveal();
}

function elected() {
  const { question, run } = explorer, winner = winners()[run.config.search.vote];
  return question.ballots.filter((ballot) => ballot[3] === winner).sort((a, b) => b[2] - a[2])[0]?.[0];
}

function goToWave(wave) {
  explorer.wave = Math.max(0, Math.min(explorer.question.waves.length, wave));
  byId("wave").value = explorer.wave;
  view.wave = explorer.wave;
  // If the selected node was added in a later wave, select its nearest ancestor that exists; the node is remembered.
  view.picked = pathTo(explorer.tree, view.wanted).filter((node) => explorer.tree.column[node] <= explorer.wave).pop();
  view.draw();
  drawKv();
  showWave();
  showNode();
}

function pick(node) {
  view.picked = view.wanted = node;
  view.reveal();
  view.draw();
  showNode();
}

function showWave() {
  const { question, tree, wave } = explorer, last = question.waves.length, { grants } = view.now;
  byId("wave-name").textContent = wave === 0 ? `Before wave 1 of ${last}` : `Wave ${wave} of ${last}`;
  const granted = [...grants.values()].reduce((sum, children) => sum + children, 0);
  let text = `The prompt is granted ${plural(granted, "child", "children")}.`;
  if (wave > 0) {
    const added = tree.columns[wave - 1], limited = added.filter((node) => tree.end[node] === STOPPED).length, ended = added.filter((node) => tree.end[node]).length - limited;
    const pruned = added.length - ended - limited - grants.size;
    const parts = [grants.size ? `${count(grants.size)} of them granted ${plural(granted, "child", "children")}` : "none granted children"];
    if (pruned) parts.push(`${count(pruned)} pruned`);
    if (ended) parts.push(`${count(ended)} finished`);
    if (limited) parts.push(`${count(limited)} stopped at a limit`);
    const clusters = new Set(question.waves[wave - 1].clusters.map(([, label]) => label)).size;
    text = `${plural(added.length, "step")} added: ${parts.join(", ")}${clusters ? `; ${plural(clusters, "cluster")}` : ""}.`;
  }
  byId("wave-line").textContent = text;
  byId("wave").setAttribute("aria-valuetext", `${byId("wave-name").textContent}. ${text}`);
  const kv = wave === 0 ? { kv: question.prompt_tokens, shared: 0, separate: question.prompt_tokens } : question.waves[wave - 1];
  const figures = [["KV tokens", kv.kv, ""], ["on several paths", kv.shared, "shared"], ["on one path", kv.kv - kv.shared, "alone"], ["without sharing", kv.separate, ""]];
  byId("kv-line").replaceChildren(...figures.map(([name, value, color]) => {
    const box = element("div"), term = box.appendChild(element("dt"));
    if (color) term.appendChild(element("span", undefined, "swatch")).style.background = `var(--${color})`;
    term.append(name);
    box.append(element("dd", count(value)));
    return box;
  }));
}

function showNode() {
  const { question, tree, run } = explorer, node = view.picked;
  byId("node-name").textContent = node === 0 ? "Prompt" : `Node ${node}`;
  const parts = [stateText(tree, view.now, node)], aggregated = aggregatedScore(tree, node, run.config.search.aggregate);
  if (node) parts.push(`wave ${tree.column[node]}`);
  if (aggregated !== null) parts.push(`path score ${share(aggregated)} (${run.config.search.aggregate})`);
  if (tree.cluster[node] >= 0) parts.push(`cluster ${letter(tree.cluster[node])}`);
  const ballot = tree.answers.get(node);
  if (tree.end[node] && tree.end[node] !== STOPPED) parts.push(ballot ? `answer ${ballot.answer}${question.judged === false ? "" : `, ${outcomeText(question.outcomes[ballot.candidate])}`}` : "no answer");
  byId("node-line").textContent = parts.join(" · ");
  byId("path").replaceChildren(...pathTo(tree, node).map((step) => {
    const item = element("li"), score = step ? question.scores[step - 1] : null;
    item.append(element("span", String(tree.column[step]), "number"), element("code", step ? question.texts[step - 1].replace(/\n+$/, "") : question.prompt), element("span", share(score), "score"));
    if (score !== null) item.appendChild(element("span", undefined, "track")).appendChild(element("i")).style.width = `${100 * Math.max(0, Math.min(1, score))}%`;
    const meta = [step ? `node ${step}` : "prompt", plural(step ? question.tokens[step - 1] : question.prompt_tokens, "token")];
    if (tree.cluster[step] >= 0) meta.push(`cluster ${letter(tree.cluster[step])}`);
    item.append(element("span", meta.join(" · "), "meta"));
    return item;
  }));
}

// Returns the distinct answers in the order of their oldest leaf, each with its leaves, sum of scores and best score.
function candidates() {
  const found = explorer.question.outcomes.map((outcome) => ({ outcome, answer: null, leaves: [], sum: 0, best: -Infinity }));
  for (const [leaf, answer, weight, place] of explorer.question.ballots) {
    const candidate = found[place];
    candidate.answer = candidate.answer ?? answer;
    candidate.leaves.push([leaf, weight]);
    candidate.sum += weight;
    candidate.best = Math.max(candidate.best, weight);
  }
  return found;
}

// Each orders two candidates as its vote does: below 0 if the first is worth more, 0 if both are worth the same.
const BY_LEAVES = (a, b) => b.leaves.length - a.leaves.length;
const ORDERS = { best: (a, b) => b.best - a.best, majority: BY_LEAVES, weighted: (a, b) => b.sum - a.sum || BY_LEAVES(a, b) };

// Returns the winner of each vote. Of equal candidates the first wins, as in the vote itself.
function winners() {
  const found = candidates(), by = (order) => found.reduce((best, candidate, place) => (best < 0 || order(candidate, found[best]) < 0 ? place : best), -1);
  return { best: by(ORDERS.best), majority: by(ORDERS.majority), weighted: by(ORDERS.weighted) };
}

function showVotes() {
  const { question, run } = explorer, found = candidates(), won = winners(), { vote } = run.config.search, judged = question.judged !== false;
  const order = found.map((_, place) => place).sort((a, b) => ORDERS[vote](found[a], found[b]) || a - b);
  const [answer, outcome] = question.choices[vote], silent = question.finished.length - question.ballots.length;
  const how = { best: "the leaf with the highest path score decides", majority: "every finished leaf has one vote", weighted: "every finished leaf votes with its path score" }[vote];
  byId("vote-line").textContent = answer === null ? `No finished leaf gave an answer${judged ? ` (${outcomeText(outcome)})` : ""}.`
    : `This run uses the ${vote} vote: ${how}. ${plural(question.ballots.length, "leaf voted", "leaves voted")}${silent ? `, ${count(silent)} finished without an answer` : ""}; ${answer} won${judged ? ` (${outcomeText(outcome)})` : ""}.`;
  const total = found.reduce((sum, candidate) => sum + candidate.sum, 0);
  const cell = (text, isWinner) => element("td", text, isWinner ? "elected" : "");
  const lines = order.slice(0, MOST_CANDIDATES).map((place) => {
    const candidate = found[place], right = candidate.outcome === "correct", name = element("td", candidate.answer, "text"), leaves = element("td", undefined, "leaves");
    leaves.append(chips(candidate.leaves));
    const weight = cell(share(candidate.sum), won.weighted === place);
    weight.append(element("small", total ? `${Math.round((100 * candidate.sum) / total)}%` : ""));
    const verdict = candidate.outcome === null ? element("td", "not judged") : element("td", `${right ? "✓" : "✗"} ${outcomeText(candidate.outcome)}`, right ? "right" : "wrong");
    return [name, ...(judged ? [verdict] : []), cell(count(candidate.leaves.length), won.majority === place), weight, cell(share(candidate.best), won.best === place), leaves];
  });
  const decides = (name, label) => (name === vote ? `${label} (decides)` : label);
  const table = tableOf(["answer", ...(judged ? ["outcome"] : []), decides("majority", "leaves"), decides("weighted", "sum of scores"), decides("best", "best score"), "leaves by score"], lines);
  table.querySelector("thead th:last-child").style.textAlign = "left";
  byId("votes").replaceChildren(found.length ? table : element("p", "No votes."));
  if (found.length) byId("votes").append(element("p", "A dot marks the winner of each vote.", "note"));
  if (order.length > MOST_CANDIDATES) byId("votes").append(element("p", `${count(order.length - MOST_CANDIDATES)} more answers are not shown.`, "note"));
}

function chips(leaves) {
  const box = element("div", undefined, "chips"), sorted = [...leaves].sort((a, b) => b[1] - a[1]);
  const show = (from, to) => sorted.slice(from, to).map(([leaf, weight]) => {
    const chip = element("button", `${leaf} · ${weight.toFixed(2)}`);
    chip.type = "button";
    chip.setAttribute("aria-label", `Show leaf ${leaf}, score ${share(weight)}`);
    chip.addEventListener("click", () => { view.wanted = leaf; goToWave(explorer.question.waves.length); pick(leaf); });
    return chip;
  });
  box.append(...show(0, MOST_CHIPS));
  if (sorted.length > MOST_CHIPS) {
    const more = element("button", `${count(sorted.length - MOST_CHIPS)} more`);
    more.type = "button";
    more.addEventListener("click", () => more.replaceWith(...show(MOST_CHIPS)));
    box.append(more);
  }
  return box;
}
