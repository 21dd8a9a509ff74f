// The tree of a question as arrays: the row and column of each node, and its state after each wave. Draws nothing.
const PRUNED = 1, ENDED = 2, LIVE = 3;  // State of a node after a wave; 0 if it was added later.
const CORRECT = 4, WRONG = 5, STOPPED = 6, UNJUDGED = 7;  // How a leaf ended; 0 for other nodes.

const AGGREGATES = {
  last: (scores) => scores[scores.length - 1],
  min: (scores) => Math.min(...scores),
  mean: (scores) => scores.reduce((sum, score) => sum + score, 0) / scores.length,
  prod: (scores) => scores.reduce((product, score) => product * score, 1),
};

// Returns the layout. Leaves get consecutive rows in depth-first order, a parent the middle of its first and last child, so
// that subtrees never overlap. The column of a node is its wave; its parent is always in the column before.
function layOut(question) {
  const size = question.parents.length + 1;
  const tree = {
    question, size, rows: 0,
    parent: new Int32Array(size).fill(-1), column: new Int32Array(size), row: new Float64Array(size),
    first: new Int32Array(size).fill(-1), last: new Int32Array(size).fill(-1), after: new Int32Array(size).fill(-1),
    end: new Uint8Array(size), cluster: new Int32Array(size).fill(-1),
    columns: question.waves.map(() => []), answers: new Map(),
  };
  let id = 1;
  question.waves.forEach((wave, place) => {
    for (let left = wave.nodes; left > 0; left -= 1, id += 1) {
      const above = question.parents[id - 1];
      tree.parent[id] = above;
      tree.column[id] = place + 1;
      if (tree.first[above] < 0) tree.first[above] = id;
      else tree.after[tree.last[above]] = id;
      tree.last[above] = id;
    }
    for (const [leaf, label] of wave.clusters) tree.cluster[leaf] = label;
  });
  for (const leaf of question.finished) tree.end[leaf] = question.judged === false ? UNJUDGED : WRONG;
  for (const leaf of question.stopped) tree.end[leaf] = STOPPED;
  for (const [leaf, answer, weight, candidate] of question.ballots) {
    tree.answers.set(leaf, { answer, weight, candidate });
    const outcome = question.outcomes[candidate];
    if (outcome === null || outcome === "correct") tree.end[leaf] = outcome ? CORRECT : UNJUDGED;
  }
  const waiting = [0];
  while (waiting.length) {
    const node = waiting.pop();
    if (tree.column[node]) tree.columns[tree.column[node] - 1].push(node);
    if (tree.first[node] < 0) tree.row[node] = tree.rows++;
    const below = [];
    for (let child = tree.first[node]; child >= 0; child = tree.after[child]) below.push(child);
    while (below.length) waiting.push(below.pop());
  }
  for (let node = size - 1; node >= 0; node -= 1) {
    if (tree.first[node] >= 0) tree.row[node] = (tree.row[tree.first[node]] + tree.row[tree.last[node]]) / 2;
  }
  return tree;
}

// Returns the state of every node after `wave` waves, and how many children each leaf was granted. A node is LIVE on the path
// of a leaf with children, ENDED on the path of a leaf that has finished or was stopped, else PRUNED.
function stateAfter(tree, wave) {
  const { question, parent, column } = tree;
  const state = new Uint8Array(tree.size);
  const grants = new Map(wave === 0 ? [[0, question.waves.length ? question.waves[0].nodes : 0]] : question.waves[wave - 1].children);
  for (let node = 0; node < tree.size; node += 1) if (column[node] <= wave) state[node] = PRUNED;
  const mark = (leaf, as) => {
    for (let node = leaf; node >= 0 && state[node] < as; node = parent[node]) state[node] = as;
  };
  for (const leaf of [...question.finished, ...question.stopped]) if (column[leaf] <= wave) mark(leaf, ENDED);
  for (const leaf of grants.keys()) mark(leaf, LIVE);
  return { state, grants };
}

function pathTo(tree, node) {
  const path = [];
  for (let step = node; step >= 0; step = tree.parent[step]) path.push(step);
  return path.reverse();
}

function aggregatedScore(tree, node, aggregate) {
  const scores = pathTo(tree, node).slice(1).map((step) => tree.question.scores[step - 1]).filter((score) => score !== null);
  return scores.length ? AGGREGATES[aggregate](scores) : null;
}

// Returns the next node above (direction -1) or below (1) in the same wave, the node itself if there is none.
function neighbor(tree, node, direction) {
  const column = tree.columns[tree.column[node] - 1];
  return column ? column[column.indexOf(node) + direction] ?? node : node;
}

const letter = (label) => String.fromCharCode(65 + (label % 26)) + (label >= 26 ? Math.floor(label / 26) : "");

// Returns the state of a node after the wave shown, in words.
function stateText(tree, { state, grants }, node) {
  if (node === 0) return "the prompt";
  if (tree.end[node]) return tree.end[node] === STOPPED ? "stopped at a limit" : "finished";
  if (grants.has(node)) return `granted ${grants.get(node)} ${grants.get(node) === 1 ? "child" : "children"}`;
  if (state[node] === LIVE) return "on a path that continues";
  if (state[node] === ENDED) return "on a path that finished";
  return tree.first[node] < 0 ? "pruned" : "all branches pruned";
}
