// The draft trees of one place in the text, one drawing per engine. The accepted path is the first row; what the
// target turned down hangs below it, and below that, on demand, what the drafter itself had pruned away.
const root = element.firstElementChild;
const head = make("header", "tree-head");
const picker = make("div", "tree-engines");
picker.setAttribute("role", "group");
picker.setAttribute("aria-label", "Engine whose steps the slider walks");
const scrubber = make("input", "tree-step");
Object.assign(scrubber, { type: "range", min: 1, max: 1, value: 1, disabled: true, id: "tree-step" });
scrubber.setAttribute("aria-label", "Verify step");
const where = make("span", "tree-where");
const tick = (id, text, checked) => {
  const label = make("label", "tree-tick", text);
  const box = make("input");
  Object.assign(box, { type: "checkbox", checked, id });
  label.prepend(box);
  return [label, box];
};
const [followLabel, follow] = tick("tree-follow", "follow live", true);
const [prunedLabel, pruned] = tick("tree-pruned", "show pruned candidates", false);
const prunedHint = make("span", "tree-hint", "Switch on “Keep pruned candidates” in the settings and run again.");
prunedHint.id = "tree-pruned-hint";
pruned.setAttribute("aria-describedby", prunedHint.id);
const zooms = make("div", "tree-zoom");
zooms.setAttribute("role", "group");
zooms.setAttribute("aria-label", "Size of the drawings");
const heading = make("div", "tree-row");
heading.append(make("h2", "", "Draft trees"), picker, scrubber, where, zooms);
const options = make("div", "tree-row tree-options");
const key = make("p", "tree-key");
const KINDS = { accepted: "accepted", bonus: "the target's own", rejected: "turned down", pruned: "pruned away" };
key.append(...Object.entries(KINDS).map(([kind, words]) => make("span", kind, words)));
options.append(followLabel, prunedLabel, prunedHint, key);
head.append(heading, options);
const drawings = make("div", "tree-drawings");
const empty = make("p", "tree-empty", "What each engine drafted, step by step, appears here during a run.");
const spoken = make("p", "tree-spoken"); // what a key brought up, for those who hear the page
spoken.setAttribute("role", "status");
root.append(head, drawings, empty, spoken);

let latest = null, leader = "", step = 0, views = new Map();
const cache = new Map(); // "run engine step" -> JSON text

// Size of the drawings ------------------------------------------------------------------------------------------
const SMALLEST = 0.3, LARGEST = 3;
let zoom = 1; // or "fit": the whole drawing
function resize(view) {
  if (!view.drawn) return;
  const { svg, wide, high } = view.drawn, { clientWidth, clientHeight } = zoom === "fit" ? view.frame : {};
  const least = Math.min(1, (clientWidth - 20) / wide, (clientHeight - 20) / high);
  const size = zoom === "fit" ? Math.max(SMALLEST, least) : zoom;
  view.size = size;
  svg.style.width = `calc(${Math.round(wide * size)}px * var(--scale, 1))`;
}
function zoomTo(size) {
  zoom = size === "fit" ? size : Math.min(LARGEST, Math.max(SMALLEST, size));
  for (const view of views.values()) resize(view);
  for (const button of zooms.children) button.setAttribute("aria-pressed", button.dataset.size === String(zoom));
}
const present = () => (zoom === "fit" ? views.get(leader)?.size ?? 1 : zoom);
for (const [text, name, size, target] of [
  ["−", "Smaller", "", () => present() / 1.25], ["100 %", "Full size", "1", () => 1],
  ["+", "Larger", "", () => present() * 1.25], ["fit", "Fit the whole drawing", "fit", () => "fit"],
]) {
  const button = make("button", "", text);
  button.type = "button";
  button.title = name;
  button.setAttribute("aria-label", name);
  button.dataset.size = size;
  button.addEventListener("click", () => zoomTo(target()));
  zooms.append(button);
}
zoomTo(1);

// One engine's drawing with its heading; remembers what it shows ------------------------------------------------
const POINT = "Point at a node, or focus the drawing: ↑ ↓ walk its nodes, ← → the steps.";
function makeView(one) {
  const box = make("section", "tree-view");
  box.dataset.engine = one.engine;
  const bar = make("div", "tree-bar");
  const badge = make("span", "badge");
  const facts = make("span", "tree-facts");
  bar.append(make("h3", "", one.label), badge, facts);
  const frame = make("div", "tree-frame");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", `${one.label} draft tree`);
  const detail = make("p", "tree-detail", POINT);
  detail.id = `tree-detail-${one.engine}`;
  frame.setAttribute("aria-describedby", detail.id);
  box.append(bar, frame, detail);
  drawings.append(box);
  const view = {
    frame, badge, facts, detail, step: 0, ticket: 0, size: 1, speaks: false, // a key asked for what comes next
    text: null, tree: null, drawn: null, at: -1, // what is shown, and the node that is marked
  };
  const nodeOf = (event) => view.drawn?.nodes[event.target.closest?.(".node")?.dataset.at];
  frame.addEventListener("keydown", (event) => {
    const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key], down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!(along || down) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (along) {
      view.speaks = true;
      walk(one.engine, (view.step || 1) + along);
    } else if (view.drawn) {
      mark(view, Math.min(view.drawn.nodes.length - 1, Math.max(0, view.at + down)));
      put(spoken, view.detail.textContent);
    }
  });
  frame.addEventListener("click", (event) => {
    const node = nodeOf(event);
    if (node) mark(view, view.drawn.nodes.indexOf(node));
  });
  frame.addEventListener("mouseover", (event) => tellOf(view, nodeOf(event)));
  frame.addEventListener("mouseleave", () => tellOf(view));
  return view;
}

function tellOf(view, node = view.drawn?.nodes[view.at]) {
  put(view.detail, node ? node.told : POINT);
}

function mark(view, at) {
  view.drawn?.nodes[view.at]?.group.classList.remove("marked");
  view.at = at;
  tellOf(view);
  const node = view.drawn?.nodes[at];
  if (!node) return;
  node.group.classList.add("marked");
  const inner = node.group.getBoundingClientRect(), outer = view.frame.getBoundingClientRect(), edge = 12;
  view.frame.scrollTop += Math.min(0, inner.top - outer.top - edge) + Math.max(0, inner.bottom - outer.bottom + edge);
  view.frame.scrollLeft += Math.min(0, inner.left - outer.left - edge) + Math.max(0, inner.right - outer.right + edge);
}

// Shows a step's tree, given as JSON text; "" where there is none.
function paint(view, text) {
  if (text !== view.text) {
    view.text = text;
    view.tree = text ? JSON.parse(text) : null;
    redraw(view);
  }
  if (view.speaks && view.tree) put(spoken, summary(view.tree));
  view.speaks = false;
}

function redraw(view) {
  const { tree } = view;
  offer();
  const all = tree?.pool && pruned.checked ? withPruned(tree) : tree;
  view.at = -1;
  view.drawn = tree && draw(tree, all);
  view.frame.replaceChildren(...(tree ? [view.drawn.svg] : []));
  resize(view);
  tellOf(view);
  if (!tree) return put(view.facts, "The server no longer keeps this run's trees.");
  view.badge.className = `badge ${tree.backend}`;
  put(view.badge, tree.engine === "dart" ? `${tree.backend} pruner` : `${tree.backend} re-rank`);
  const facts = [`step ${tree.step}`, `${tree.drafted} drafted`, `${tree.accepted} accepted`];
  if (all.drawn) facts.push(`${all.drawn} pruned${all.omitted ? `, ${all.omitted} more left out` : ""}`);
  if (tree.choice && tree.choice.asked > tree.drafted) facts[1] += ` of ${tree.choice.asked} asked for`;
  if (tree.choice) {
    facts.push(`${tree.choice.expected.toFixed(1)} tokens expected for ${tree.choice.cost.toFixed(2)} × a plain step`);
  }
  facts.push(...["draft", "search", "verify"].map((stage) => `${stage} ${tree.ms[stage].toFixed(1)} ms`));
  put(view.facts, facts.join(" · "));
}

// Pruned candidates can be shown where the run kept them.
function offer() {
  const trees = [...views.values()].map((view) => view.tree).filter(Boolean);
  pruned.disabled = !trees.some((tree) => tree.pool);
  prunedHint.hidden = !(trees.length && pruned.disabled);
  pruned.title = prunedHint.hidden ? "" : prunedHint.textContent;
}

// Steps and places in the text ----------------------------------------------------------------------------------
const laneOf = (engine) => latest?.lanes.find((one) => one.engine === engine);
const counts = (one) => (one?.emitted ? one.emitted.split(",").map(Number) : []);
const steps = (one) => Math.max(0, counts(one).length - 1);
const placeOf = (one, index) => counts(one).slice(0, index).reduce((sum, count) => sum + count, 0);
function stepAt(one, place) {
  let total = 0;
  const index = counts(one).findIndex((count) => (total += count) > place);
  return Math.max(1, index < 0 ? steps(one) : index);
}

async function showLane(one, index) {
  const view = views.get(one.engine);
  view.step = index;
  const key = `${latest.run} ${one.engine} ${index}`;
  const ticket = (view.ticket += 1);
  let text = cache.get(key) ?? (index === steps(one) ? one.latest : "");
  if (!text) {
    try { text = await server.tree(latest.run, one.engine, index); } catch { text = ""; }
    if (ticket !== view.ticket) return; // the visitor has moved on
  }
  if (text) cache.set(key, text);
  if (cache.size > 150) cache.delete(cache.keys().next().value);
  paint(view, text);
}

function show() {
  const lead = laneOf(leader);
  const count = steps(lead);
  scrubber.disabled = count === 0;
  empty.hidden = Boolean(latest?.lanes.some((one) => steps(one)));
  drawings.hidden = !empty.hidden;
  if (count) {
    step = follow.checked ? count : Math.min(Math.max(1, step), count);
    scrubber.max = count;
    scrubber.value = step;
    scrubber.setAttribute("aria-valuetext", `step ${step} of ${count}`);
  }
  put(where, count ? `step ${step} / ${count}` : "");
  for (const one of latest?.lanes ?? []) {
    if (!steps(one)) continue;
    const index = one === lead ? step : follow.checked ? steps(one) : stepAt(one, placeOf(lead, step));
    showLane(one, index);
  }
}

// Go to a step of an engine; the other drawings go to the step that covers the same place in the text.
function walk(engine, index) {
  follow.checked = false;
  leader = engine;
  step = index;
  press();
  show();
  tell("arena:step", { engine, step });
}

function press() {
  for (const button of picker.children) button.setAttribute("aria-pressed", button.dataset.engine === leader);
}

function begin(value) {
  cache.clear();
  follow.checked = true;
  step = 0;
  drawings.replaceChildren();
  views = new Map(value.lanes.map((one) => [one.engine, makeView(one)]));
  offer();
  picker.replaceChildren(...value.lanes.map((one) => {
    const button = make("button", "", one.label);
    button.type = "button";
    button.dataset.engine = one.engine;
    button.addEventListener("click", () => {
      const before = laneOf(leader);
      const there = steps(before) && !follow.checked ? stepAt(one, placeOf(before, step)) : step;
      leader = one.engine;
      step = there;
      press();
      show();
    });
    return button;
  }));
  if (!value.lanes.some((one) => one.engine === leader)) leader = value.lanes[0]?.engine ?? "";
}

const showLive = paced(show, 100);
function render(value) {
  if (!value || typeof value !== "object") return;
  if (value.run !== latest?.run) {
    latest = value;
    begin(value);
  }
  latest = value;
  press();
  showLive();
}

scrubber.addEventListener("input", () => walk(leader, Number(scrubber.value)));
follow.addEventListener("change", show);
pruned.addEventListener("change", () => {
  for (const view of views.values()) if (view.tree) redraw(view);
});
listen("arena:step", (chosen) => {
  if (chosen.engine === leader && chosen.step === step && !follow.checked) return;
  if (laneOf(chosen.engine)) walk(chosen.engine, chosen.step);
});

render(props.value);
watch("value", () => render(props.value));
