// A draft tree as SVG: where its nodes stand and what is drawn of them. Nothing here knows of runs or the server.
const SVG = "http://www.w3.org/2000/svg";
const ROW = 26, HEIGHT = 20, GAP = 24, TURN = 6, PAD = 8, CHAR = 7.3, LONGEST = 14;
const POOL = 150; // pruned candidates drawn at most
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f000}-\u{3ffff}]/u;

const shape = (name, attributes, text) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const short = (text) => {
  const letters = [...visible(text)];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : letters.join("") || "∅";
};
const width = (label) => {
  const cells = [...label].reduce((sum, letter) => sum + (WIDE.test(letter) ? 1.8 : 1), 0);
  return Math.max(24, cells * CHAR + 2 * PAD);
};
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);

// The tree with the best of what was pruned away: such nodes come after the tree's own, and never without the
// pruned nodes above them. `omitted`: how many there is no room for.
function withPruned(tree) {
  const { pool } = tree;
  const score = (at) => pool.score[at] ?? -Infinity;
  const pruned = pool.node.flatMap((node, at) => (node < 0 ? [at] : []));
  pruned.sort((a, b) => score(b) - score(a) || a - b);
  const nodes = new Map(); // place in the pool -> node
  const all = { ...tree, tokens: [...tree.tokens], parents: [...tree.parents], score: [...tree.score] };
  for (const best of pruned) {
    const room = POOL - nodes.size, chain = [];
    for (let at = best; at >= 0 && pool.node[at] < 0 && !nodes.has(at) && chain.length <= room; at = pool.parents[at]) {
      chain.push(at);
    }
    if (chain.length > room) continue;
    for (const at of chain.reverse()) {
      const above = pool.parents[at];
      nodes.set(at, all.tokens.push(pool.tokens[at]) - 1);
      all.parents.push(above < 0 ? 0 : pool.node[above] < 0 ? nodes.get(above) : pool.node[above]);
      all.score.push(pool.score[at]);
    }
  }
  return { ...all, drawn: nodes.size, omitted: pruned.length - nodes.size + (pool.more ?? 0) };
}

// Rows and columns. A column is a depth. A node shares the row of its first child, so every path reads along a line;
// the other children go below, each as high as its column and those to the right still have room.
function arrange(tree, kept) {
  const lit = new Set(tree.path), end = tree.path.at(-1) ?? 0;
  const children = tree.parents.map(() => []);
  const depth = tree.parents.map(() => 0);
  tree.parents.forEach((parent, node) => {
    if (parent < 0) return;
    children[parent].push(node);
    depth[node] = depth[parent] + 1;
  });
  // The accepted one first, what was pruned last: below its siblings.
  const rank = (node) => (lit.has(node) ? 0 : node < kept ? 1 : 2);
  children.forEach((list) => list.sort((a, b) => rank(a) - rank(b) || a - b));

  const row = [], free = []; // of a node; the first one free in a column
  const waiting = [[0, 0]]; // first nodes of lines, with the highest row they may take
  while (waiting.length) {
    const [first, least] = waiting.pop(), line = [first];
    const stops = (node) => node === end && tree.bonus !== null; // the target's own token goes on there
    while (children[line.at(-1)].length && !stops(line.at(-1))) line.push(children[line.at(-1)][0]);
    const columns = line.map((node) => depth[node]);
    if (stops(line.at(-1))) columns.push(depth[end] + 1);
    const place = Math.max(least, ...columns.map((column) => free[column] ?? 0));
    columns.forEach((column) => { free[column] = place + 1; });
    for (const node of line) {
      row[node] = place;
      const others = children[node].slice(stops(node) ? 0 : 1);
      waiting.push(...others.reverse().map((other) => [other, place + 1]));
    }
  }

  const labels = tree.tokens.map(short);
  const widths = labels.map(width);
  const columns = [];
  const widen = (column, wide) => { columns[column] = Math.max(columns[column] ?? 0, wide); };
  widths.forEach((wide, node) => widen(depth[node], wide));
  if (tree.bonus !== null) widen(depth[end] + 1, width(short(tree.bonus)));
  const left = [];
  columns.reduce((x, wide, column) => { left[column] = x; return x + wide + GAP; }, 2);
  return {
    lit, end, depth, labels, widths, left,
    y: (node) => 4 + row[node] * ROW + HEIGHT / 2,
    order: row.map((_, node) => node).sort((a, b) => row[a] - row[b] || depth[a] - depth[b]), // as one reads
    wide: left.at(-1) + columns.at(-1) + 4, high: Math.max(...free) * ROW + 6,
  };
}

function about(tree, node, kind, depth) {
  const name = `“${tree.tokens[node]}”`, score = `score ${tree.score[node] ?? "–"}`;
  if (kind === "root") return `${name} – the last committed token`;
  if (kind === "pruned") return `${name} – pruned, ${score} · depth ${depth}`;
  const ngram = tree.ngram[node] === null ? "" : ` · n-gram ${percent(tree.ngram[node])}`;
  return `${name} – ${kind} · draft ${percent(tree.p[node])}${ngram} · ${score} · depth ${depth}`;
}
function summary(tree) {
  const path = tree.path.slice(1).map((node) => tree.tokens[node]).join("");
  const counts = `${tree.drafted} drafted, ${tree.accepted} accepted`;
  return `Step ${tree.step}: ${counts} “${path}”, then the target's own “${tree.bonus ?? ""}”`;
}

// {svg, wide, high, nodes: [{group, told}] in reading order}. `all`: the tree, or the tree with what was pruned.
function draw(tree, all) {
  const kept = tree.tokens.length;
  const { lit, depth, labels, widths, left, y, end, order, wide, high } = arrange(all, kept);
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": summary(tree) });
  svg.dataset.step = tree.step;
  const lines = { pruned: "", rejected: "", accepted: "", bonus: "" }; // the lit path lies over the rest
  const pills = shape("g", { class: "nodes" });
  const nodes = [];
  const rightOf = (node) => left[depth[node]] + widths[node];
  // Right, or from the sibling before down a trunk and right.
  const trunk = []; // how far down it is drawn, per parent
  const edge = (parent, x, row, kind) => {
    const from = trunk[parent] ?? y(parent), bend = Math.max(from, row - TURN);
    lines[kind] += row === y(parent) ? `M${rightOf(parent)},${row} H${x} ` :
      `M${x - GAP / 2},${from} V${bend} q0,${TURN} ${TURN},${TURN} H${x} `;
    trunk[parent] = bend;
  };
  const pill = (x, middle, label, span, kind, told, chance) => {
    const group = shape("g", { class: `node ${kind}`, transform: `translate(${x},${middle - HEIGHT / 2})` });
    group.dataset.at = nodes.length;
    group.append(shape("title", {}, told), shape("rect", { width: span, height: HEIGHT, rx: 5 }));
    if (chance > 0) {
      const length = Math.max(1, (span - 6) * chance);
      group.append(shape("rect", { class: "chance", x: 3, y: HEIGHT - 3, width: length, height: 2, rx: 1 }));
    }
    group.append(shape("text", { x: span / 2, y: HEIGHT / 2 + 4 }, label));
    pills.append(group);
    nodes.push({ group, told });
  };
  for (const node of order) {
    const parent = all.parents[node];
    const kind = node === 0 ? "root" : node >= kept ? "pruned" : lit.has(node) ? "accepted" : "rejected";
    if (parent >= 0) edge(parent, left[depth[node]], y(node), kind);
    const chance = node && node < kept ? tree.p[node] ?? 0 : 0;
    pill(left[depth[node]], y(node), labels[node], widths[node], kind, about(all, node, kind, depth[node]), chance);
    if (node === end && tree.bonus !== null) {
      const x = left[depth[end] + 1], label = short(tree.bonus);
      edge(end, x, y(end), "bonus");
      pill(x, y(end), label, width(label), "bonus", `“${tree.bonus}” – the target's own token`, 0);
    }
  }
  for (const [kind, d] of Object.entries(lines)) if (d) svg.append(shape("path", { class: `edge ${kind}`, d }));
  svg.append(pills);
  return { svg, wide, high, nodes };
}
