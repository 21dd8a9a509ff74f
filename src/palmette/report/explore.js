// The explorer: which run, which question, which wave, which node; what stands beside the tree.
const MOST_CHIPS = 12, MOST_CANDIDATES = 8;
const explorer = { run: null, story: null, tree: null, wave: 0 };
const view = new TreeView(byId("view"), byId("tall"), byId("canvas"), (node) => pick(node));

function showRun(place) {
  explorer.run = runs[place];
  const { stories, results, config } = explorer.run;
  const missing = results.questions - stories.length;
  byId("left-out").hidden = missing <= 0;
  byId("left-out").textContent = `The trees of the first ${plural(stories.length, "question")} are on this page; ${count(missing)} more would make it too large. Results count all of them.`;
  byId("question").replaceChildren(...stories.map((story, index) => {
    const right = story.choices[config.search.vote][1] === "correct";
    return new Option(`${right ? "✓" : "✗"} ${index + 1}. ${shortened(story.prompt, 90)}`, index);
  }));
  byId("explorer").hidden = !stories.length;
  if (stories.length) showQuestion(Math.min(stories.length - 1, Math.max(0, explorer.index ?? 0)));
}

function showQuestion(index) {
  const { run } = explorer, story = run.stories[index], tree = plant(story);
  Object.assign(explorer, { index, story, tree });
  byId("question").value = index;
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === run.stories.length - 1;
  byId("prompt").textContent = story.prompt;
  const [answer, outcome] = story.choices[run.config.search.vote], right = outcome === "correct";
  byId("verdict").replaceChildren(
    element("span", right ? "✓ " : "✗ ", right ? "right" : "wrong"),
    `Answered ${answer ?? "nothing"}, which is `, element("span", outcomeText(outcome), right ? "right" : "wrong"), `; the reference is ${story.reference}.`);
  byId("wave").max = story.waves.length;
  showLegend();
  showVotes();
  view.show(tree);
  placeSlider();
  view.picked = view.wanted = elected() ?? 0;
  goToWave(story.waves.length);
  view.reveal();
}

function elected() {
  const { story, run } = explorer, winner = winners()[run.config.search.vote];
  return story.ballots.filter((ballot) => ballot[3] === winner).sort((a, b) => b[2] - a[2])[0]?.[0];
}

function goToWave(wave) {
  explorer.wave = Math.max(0, Math.min(explorer.story.waves.length, wave));
  byId("wave").value = explorer.wave;
  view.wave = explorer.wave;
  // A node that has not grown yet hands the selection to its closest ancestor that has; sliding on gives it back.
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
  const { story, tree, wave } = explorer, last = story.waves.length, { grants } = view.now;
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
    const clusters = new Set(story.waves[wave - 1].clusters.map(([, label]) => label)).size;
    text = `${plural(added.length, "step")} added: ${parts.join(", ")}${clusters ? `; ${plural(clusters, "cluster")}` : ""}.`;
  }
  byId("wave-line").textContent = text;
  byId("wave").setAttribute("aria-valuetext", `${byId("wave-name").textContent}. ${text}`);
  const held = wave === 0 ? { kv: story.prompt_tokens, shared: 0, separate: story.prompt_tokens } : story.waves[wave - 1];
  const figures = [["KV tokens held", held.kv, ""], ["shared by two or more", held.shared, "shared"], ["of one branch alone", held.kv - held.shared, "alone"], ["with separate caches", held.separate, ""]];
  byId("kv-line").replaceChildren(...figures.map(([name, value, color]) => {
    const box = element("div"), term = box.appendChild(element("dt"));
    if (color) term.appendChild(element("span", undefined, "swatch")).style.background = `var(--${color})`;
    term.append(name);
    box.append(element("dd", count(value)));
    return box;
  }));
}

function showNode() {
  const { story, tree, run } = explorer, node = view.picked;
  byId("node-name").textContent = node === 0 ? "Prompt" : `Node ${node}`;
  const told = [fate(tree, view.now, node)], aggregated = aggregatedScore(tree, node, run.config.search.aggregate);
  if (node) told.push(`wave ${tree.column[node]}`);
  if (aggregated !== null) told.push(`path score ${share(aggregated)} (${run.config.search.aggregate})`);
  if (tree.cluster[node] >= 0) told.push(`cluster ${letter(tree.cluster[node])}`);
  const ballot = tree.answers.get(node);
  if (tree.end[node] && tree.end[node] !== STOPPED) told.push(ballot ? `answer ${ballot.answer}, ${outcomeText(story.outcomes[ballot.candidate])}` : "no answer");
  byId("node-line").textContent = told.join(" · ");
  byId("path").replaceChildren(...pathTo(tree, node).map((step) => {
    const item = element("li"), score = step ? story.scores[step - 1] : null;
    item.append(element("span", String(tree.column[step]), "number"), element("code", step ? story.texts[step - 1].replace(/\n+$/, "") : story.prompt), element("span", share(score), "score"));
    if (score !== null) item.appendChild(element("span", undefined, "track")).appendChild(element("i")).style.width = `${100 * Math.max(0, Math.min(1, score))}%`;
    const meta = [step ? `node ${step}` : "prompt", plural(step ? story.tokens[step - 1] : story.prompt_tokens, "token")];
    if (tree.cluster[step] >= 0) meta.push(`cluster ${letter(tree.cluster[step])}`);
    item.append(element("span", meta.join(" · "), "meta"));
    return item;
  }));
}

// Candidates in the order they were first voiced, with what each way of voting gives them.
function candidates() {
  const found = explorer.story.outcomes.map((outcome) => ({ outcome, answer: null, leaves: [], sum: 0, best: -Infinity }));
  for (const [leaf, answer, weight, place] of explorer.story.ballots) {
    const one = found[place];
    one.answer = one.answer ?? answer;
    one.leaves.push([leaf, weight]);
    one.sum += weight;
    one.best = Math.max(one.best, weight);
  }
  return found;
}

// The first of the highest, as the vote itself breaks its ties: candidates stand in the order of their oldest leaf.
function winners() {
  const found = candidates(), by = (value) => found.reduce((best, one, place) => (best < 0 || value(one) > value(found[best]) ? place : best), -1);
  return { best: by((one) => one.best), majority: by((one) => one.leaves.length), weighted: by((one) => one.sum) };
}

function showVotes() {
  const { story, run } = explorer, found = candidates(), won = winners(), { vote } = run.config.search;
  const worth = { best: (one) => one.best, majority: (one) => one.leaves.length, weighted: (one) => one.sum }[vote];
  const order = found.map((_, place) => place).sort((a, b) => worth(found[b]) - worth(found[a]) || a - b);
  const [answer, outcome] = story.choices[vote], silent = story.finished.length - story.ballots.length;
  const how = { best: "the leaf with the highest path score decides", majority: "every finished leaf has one vote", weighted: "every finished leaf votes with its path score" }[vote];
  byId("vote-line").textContent = answer === null ? `No finished leaf gave an answer (${outcomeText(outcome)}).`
    : `This run goes by the ${vote} vote: ${how}. ${plural(story.ballots.length, "leaf voted", "leaves voted")}${silent ? `, ${count(silent)} finished without an answer` : ""}; ${answer} won and is ${outcomeText(outcome)}.`;
  const total = found.reduce((sum, one) => sum + one.sum, 0);
  const cell = (text, isWinner) => element("td", text, isWinner ? "elected" : "");
  const lines = order.slice(0, MOST_CANDIDATES).map((place) => {
    const one = found[place], right = one.outcome === "correct", name = element("td", one.answer, "text"), leaves = element("td", undefined, "leaves");
    leaves.append(chips(one.leaves));
    const weight = cell(share(one.sum), won.weighted === place);
    weight.append(element("small", total ? `${Math.round((100 * one.sum) / total)}%` : ""));
    return [name, one.outcome === null ? element("td", "not judged again") : element("td", `${right ? "✓" : "✗"} ${outcomeText(one.outcome)}`, right ? "right" : "wrong"), cell(count(one.leaves.length), won.majority === place), weight, cell(share(one.best), won.best === place), leaves];
  });
  const decides = (name, label) => (name === vote ? `${label}, decides` : label);
  const table = tableOf(["answer", "verdict", decides("majority", "leaves"), decides("weighted", "sum of scores"), decides("best", "best score"), "its leaves, by score"], lines);
  table.querySelector("thead th:last-child").style.textAlign = "left";
  byId("votes").replaceChildren(found.length ? table : element("p", "No votes."));
  if (found.length) byId("votes").append(element("p", "A dot marks the winner of each way of voting.", "note"));
  if (order.length > MOST_CANDIDATES) byId("votes").append(element("p", `${count(order.length - MOST_CANDIDATES)} more answers got less.`, "note"));
}

function chips(leaves) {
  const box = element("div", undefined, "chips"), sorted = [...leaves].sort((a, b) => b[1] - a[1]);
  const show = (from, to) => sorted.slice(from, to).map(([leaf, weight]) => {
    const chip = element("button", `${leaf} · ${weight.toFixed(2)}`);
    chip.type = "button";
    chip.setAttribute("aria-label", `Show leaf ${leaf}, score ${share(weight)}`);
    chip.addEventListener("click", () => { view.wanted = leaf; goToWave(explorer.story.waves.length); pick(leaf); });
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
