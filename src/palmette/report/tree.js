// Draws a tree on a canvas. The columns fill the width, aligned with the slider and the KV bars; the rows scroll.
const SMALLEST_TEXT_ROW = 15, SMALLEST_LABEL_ROW = 10, LARGEST_ROW = 26, PAD = 18, BEND = 0.24, SMALLEST_CURVE_ROW = 1.5, MARGIN = 20;

class TreeView {
  constructor(view, tall, canvas, onPick) {
    Object.assign(this, { view, tall, canvas, pen: canvas.getContext("2d"), tree: null, wave: 0, picked: 0, zoom: 1 });
    view.addEventListener("scroll", () => this.draw());
    canvas.addEventListener("pointermove", (event) => {
      const node = this.nearest(event.offsetX, event.offsetY);
      canvas.title = node ? `Node ${node}, score ${share(this.tree.question.scores[node - 1])}\n${shortened(this.tree.question.texts[node - 1], 300)}` : "";
    });
    canvas.addEventListener("click", (event) => {
      const node = this.nearest(event.offsetX, event.offsetY);
      if (node !== null) onPick(node);
    });
  }

  show(tree) {
    Object.assign(this, { tree, zoom: 1 });
    this.measure();
  }

  // Computes everything that depends on the size of the window and on the zoom, then draws.
  measure() {
    const width = this.view.clientWidth, narrow = width < 520;
    const most = Math.round(Math.min(Math.max(innerHeight * 0.5, 340), 640));
    const rows = Math.max(1, this.tree.rows - 1);
    this.fitted = Math.min(LARGEST_ROW, (most - 2 * PAD) / rows);
    this.zoom = Math.max(1, Math.min(this.zoom, LARGEST_ROW / this.fitted));
    this.rowHeight = this.fitted * this.zoom;
    const content = Math.ceil(rows * this.rowHeight + 2 * PAD);
    this.left = 14;
    this.columnWidth = (width - this.left - (narrow ? 58 : 92)) / Math.max(1, this.tree.columns.length);
    this.width = width;
    this.height = Math.min(most, Math.max(content, 120));
    this.view.style.height = `${this.height}px`;
    this.tall.style.height = `${content}px`;
    this.offset = content < this.height ? (this.height - content) / 2 : 0;
    this.xs = Float32Array.from(this.tree.column, (column) => this.left + column * this.columnWidth);
    this.ys = Float32Array.from(this.tree.row, (row) => PAD + this.offset + row * this.rowHeight);
    sharpen(this.canvas, this.pen, width, this.height);
    this.colors = palette();
    this.draw();
  }

  x(node) { return this.xs[node]; }
  y(node) { return this.ys[node] - this.view.scrollTop; }

  zoomBy(factor) {
    const middle = this.height / 2, row = (this.picked ? this.y(this.picked) : middle) - middle;
    this.zoom = factor === 0 ? 1 : this.zoom * factor;
    this.measure();
    if (this.picked) this.reveal(Math.abs(row) < middle ? middle + row : middle);
  }

  // Scrolls so that the picked node is visible, at height `place` if given.
  reveal(place) {
    const y = this.y(this.picked);
    if (place !== undefined) this.view.scrollTop += y - place;
    else if (y < PAD || y > this.height - PAD) this.view.scrollTop += y - this.height / 2;
  }

  nearest(x, y) {
    const { tree } = this, { state } = this.now;
    let found = null, least = 24 * 24;
    for (let node = 0; node < tree.size; node += 1) {
      if (!state[node]) continue;
      const distance = (this.x(node) - x) ** 2 + (this.y(node) - y) ** 2;
      if (distance < least) [found, least] = [node, distance];
    }
    return found;
  }

  draw() {
    if (!this.tree) return;
    this.now = stateAfter(this.tree, this.wave);
    const { pen, colors } = this;
    this.top = this.view.scrollTop;
    pen.clearRect(0, 0, this.width, this.height);
    pen.fillStyle = colors.line;
    pen.fillRect(this.left + this.wave * this.columnWidth - 0.5, 0, 1, this.height);
    pen.save();
    pen.translate(0, -this.top);
    this.drawEdges();
    this.drawPath();
    this.drawNodes();
    if (this.rowHeight >= SMALLEST_LABEL_ROW) this.drawLabels();
    else this.drawGrants();
    pen.strokeStyle = colors.pick;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.xs[this.picked], this.ys[this.picked], 7, 0, 2 * Math.PI);
    pen.stroke();
    pen.restore();
  }

  // Returns whether a node is above the visible part (-1), in it (0) or below it (1).
  side(node) {
    const y = this.ys[node] - this.top;
    return y < -MARGIN ? -1 : y > this.height + MARGIN ? 1 : 0;
  }

  edge(pen, node, straight) {
    const above = this.tree.parent[node], side = this.side(node);
    if (side && side === this.side(above)) return;
    const x = this.xs[above], y = this.ys[above], down = this.ys[node], wide = this.columnWidth;
    pen.moveTo(x, y);
    if (straight) pen.lineTo(x + wide * BEND * 0.5, down);
    else if (Math.abs(down - y) > 1) pen.bezierCurveTo(x + wide * 0.18, y, x + wide * 0.06, down, x + wide * BEND, down);
    pen.lineTo(x + wide, down);
  }

  drawEdges() {
    const { pen, tree, colors } = this, { state } = this.now, dense = this.rowHeight < SMALLEST_CURVE_ROW;
    const styles = [[PRUNED, colors.faint, 0.75], [ENDED, colors.soft, 1.25], [LIVE, colors.leaf, 1.5]];
    const stride = this.height + 2 * MARGIN + 1, seen = new Uint8Array(dense ? (tree.columns.length + 1) * stride : 0);
    for (const [which, color, weight] of styles) {
      pen.beginPath();
      for (let node = 1; node < tree.size; node += 1) {
        if (state[node] !== which) continue;
        // If rows are thinner than a pixel, draw only one of the edges that end on the same pixel.
        if (dense && !this.side(node)) {
          const pixel = tree.column[node] * stride + Math.round(this.ys[node] - this.top) + MARGIN;
          if (seen[pixel] === which) continue;
          seen[pixel] = which;
        }
        this.edge(pen, node, dense && which === PRUNED);
      }
      pen.strokeStyle = color;
      pen.lineWidth = dense ? weight * 0.7 : weight;
      pen.stroke();
    }
  }

  drawPath() {
    const { pen } = this;
    pen.beginPath();
    for (const node of pathTo(this.tree, this.picked)) if (node) this.edge(pen, node);
    pen.strokeStyle = this.colors.pick;
    pen.lineWidth = 2.25;
    pen.stroke();
  }

  // Shapes show the same as colors: disc continues, ring was pruned, square finished (hollow if wrong), bar hit a limit.
  drawNodes() {
    const { pen, tree, colors } = this, { state } = this.now;
    const radius = Math.max(1, Math.min(4, this.rowHeight * 0.36)), kindColors = [null, colors.faint, colors.soft, colors.leaf, colors.leaf, colors.bad, colors.soft, colors.ink];
    const batches = Array.from({ length: kindColors.length * 9 }, () => []);
    for (let node = 0; node < tree.size; node += 1) {
      if (!state[node] || this.side(node)) continue;
      const kind = tree.end[node] || state[node], label = tree.cluster[node];
      const batch = batches[kind * 9 + (label < 0 || tree.end[node] ? 8 : label % 8)], last = batch[batch.length - 1];
      // If consecutive siblings fall on the same pixel, draw only the first.
      if (last && tree.column[last] === tree.column[node] && Math.abs(this.ys[last] - this.ys[node]) < 0.7) continue;
      batch.push(node);
    }
    pen.lineWidth = Math.min(1.5, radius * 0.6);
    batches.forEach((nodes, place) => {
      const kind = Math.floor(place / 9), color = colors.clusters[place % 9] ?? kindColors[kind], hollow = kind === PRUNED || kind === WRONG;
      pen.fillStyle = pen.strokeStyle = color;
      if (radius < 1.6) {
        for (const node of nodes) pen.fillRect(this.xs[node] - radius, this.ys[node] - radius, 2 * radius, 2 * radius);
        return;
      }
      pen.beginPath();
      for (const node of nodes) trace(pen, kind, this.xs[node], this.ys[node], radius);
      if (hollow) pen.fillStyle = colors.paper;
      pen.fill();
      if (hollow) pen.stroke();
    });
  }

  // In the overview, shows granted children as a number if there is space, else as a bar in proportion to them.
  drawGrants() {
    const { pen, tree, colors } = this, { grants } = this.now, most = Math.max(1, ...grants.values());
    const high = Math.max(1, Math.min(4, this.rowHeight * 0.6)), long = Math.min(38, this.columnWidth - 12);
    const ends = (this.wave ? tree.columns[this.wave - 1] : [0]).filter((node) => grants.has(node) || tree.answers.has(node));
    ends.forEach((node, place) => {
      const x = this.xs[node] + 7, y = this.ys[node], count = grants.get(node);
      const isFree = [ends[place - 1], ends[place + 1]].every((other) => other === undefined || Math.abs(this.ys[other] - y) >= 12);
      pen.fillStyle = count ? colors.leaf : { [CORRECT]: colors.leaf, [WRONG]: colors.bad }[tree.end[node]] ?? colors.ink;
      if (isFree) {
        pen.font = `600 11px system-ui, sans-serif`;
        const label = count ? `+${count}` : `${{ [CORRECT]: "✓ ", [WRONG]: "✗ " }[tree.end[node]] ?? ""}${tree.answers.get(node).answer}`;
        pen.fillText(shortened(label, Math.floor((this.width - x) / 7)), x + 2, y + 4);
      } else if (count) pen.fillRect(x, y - high / 2, 3 + (count / most) * long, high);
    });
  }

  drawLabels() {
    const { pen, tree, colors } = this, { state, grants } = this.now;
    const wide = this.columnWidth * (1 - BEND) - 8, small = this.rowHeight < 13 ? 10 : 11.5;
    const character = small * 0.61, steps = this.rowHeight >= SMALLEST_TEXT_ROW && wide > 6.9 * 6.65;
    pen.textBaseline = "alphabetic";
    for (let node = 1; node < tree.size; node += 1) {
      if (!state[node] || this.side(node)) continue;
      const x = this.xs[node], y = this.ys[node];
      if (steps) {
        pen.font = `11px ${colors.mono}`;
        pen.fillStyle = state[node] === PRUNED ? colors.soft : colors.ink;
        pen.globalAlpha = state[node] === PRUNED ? 0.75 : 1;
        pen.fillText(shortened(tree.question.texts[node - 1], Math.floor(wide / 6.65)), x - wide - 5, y - 4);
        pen.globalAlpha = 1;
      }
      const cluster = tree.column[node] === this.wave && tree.cluster[node] >= 0 ? letter(tree.cluster[node]) : "";
      let after = x + 8;
      if (cluster) {
        pen.font = `600 ${small}px system-ui, sans-serif`;
        pen.fillStyle = colors.clusters[tree.cluster[node] % 8];
        pen.fillText(cluster, after, y + small * 0.35);
        after += pen.measureText(cluster).width + 5;
      }
      if (grants.has(node)) {
        pen.font = `600 ${small}px system-ui, sans-serif`;
        pen.fillStyle = colors.leaf;
        pen.fillText(`+${grants.get(node)}`, after, y + small * 0.35);
        after += pen.measureText(`+${grants.get(node)}`).width + 8;
      }
      if (tree.end[node] && tree.end[node] !== STOPPED) {
        const ballot = tree.answers.get(node), sign = { [CORRECT]: "✓", [WRONG]: "✗", [UNJUDGED]: "=" }[tree.end[node]];
        pen.font = `${small}px ${colors.mono}`;
        pen.fillStyle = { "✓": colors.leaf, "✗": colors.bad, "=": colors.ink }[sign];
        const room = Math.floor((this.width - after - 2) / character);
        pen.fillText(shortened(`${sign} ${ballot ? ballot.answer : "no answer"}`, Math.min(24, room)), after, y + small * 0.35);
      } else if (!steps && tree.column[node] === this.wave) {
        // The columns to the right of the last wave are empty: there is space for the text of the step.
        pen.font = `${small}px ${colors.mono}`;
        pen.fillStyle = colors.soft;
        pen.fillText(shortened(tree.question.texts[node - 1], Math.floor((this.width - after - 2) / character)), after, y + small * 0.35);
      }
    }
  }
}
