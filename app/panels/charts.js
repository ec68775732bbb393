// The charts of a run. What is new is drawn one chart at a time, so that the page never waits for all of them.
const root = element.firstElementChild;
const REDRAW = 60; // ms between two charts, at the least
const QUIET = 1000; // ms without news after which the texts that stand for the charts are renewed
const CLOCK = "seconds of own clock", STEP = "verify step";

let latest = null, run = null, lanes = [], axis = STEP;
const racers = () => lanes.filter((seen) => seen.drafts);
const rate = () => latest.baseline?.[0] ?? 0;
const mean = (numbers) => numbers.reduce((sum, part) => sum + part, 0) / numbers.length;

// The series that depend on more than their lane ----------------------------------------------------------------
const along = (seen) => (axis === STEP ? seen.steps : seen.ends);
const speedups = (seen) => (rate() ? [seen.steps, seen.rate.map((value) => value / rate())] : [[], []]);

function plainDecoding() { // at its measured rate, as far as the longest lane
  const clocks = lanes.filter((seen) => seen.clocks.length).map((seen) => seen.clocks);
  if (!rate() || racers().length < lanes.length || !clocks.length) return [[], []];
  const first = clocks[0][0], reach = Math.max(...clocks.map((one) => one.at(-1)));
  return [[first, reach], [1, 1 + rate() * (reach - first)]];
}
function shares(seen) { // of verify steps that accepted their 1st, 2nd, … draft token
  if (!seen.steps.length) return [[], []];
  const deepest = Math.max(...racers().map((one) => one.reached.length));
  const places = Array.from({ length: deepest }, (_, place) => place + 1);
  return [places, places.map((place) => (seen.reached[place - 1] ?? 0) / seen.steps.length)];
}

// Each with its figure, its hint, its traces, and its words on one lane -----------------------------------------
const CHARTS = [
  {
    plot: figure(root, "chart-race", { heading: "The race", x: CLOCK, y: "tokens" }),
    hint: () => "Tokens over each engine's own clock, the prefill included.",
    traces: () => [
      { name: "plain decoding at its measured rate", engine: "ar", key: "plain decoding, measured",
        series: plainDecoding, replaced: true, width: 1.5, dash: "dot" },
      ...lanes.map((seen) => (
        { name: seen.label, engine: seen.engine, key: seen.label, series: () => [seen.clocks, seen.tokens] })),
    ],
    words: (seen) => seen.clocks.length &&
      `${seen.tokens.at(-1)} tokens in ${seen.clocks.at(-1).toFixed(2)} seconds of own clock`,
  },
  {
    plot: figure(root, "chart-accepted", { heading: "Accepted per step", x: STEP, y: "accepted" }),
    hint: () => `Draft tokens the target accepted. Faint: each step. Bold: mean of the last ${MEAN} steps.`,
    traces: () => [
      ...racers().map((seen) => (
        { name: seen.label, engine: seen.engine, series: () => [along(seen), seen.accepted], faint: true, width: 1,
          shape: "vh" })),
      ...racers().map((seen) => (
        { name: `${seen.label}, mean`, engine: seen.engine, key: seen.label, series: () => [along(seen), seen.mean] })),
    ],
    words: (seen) => seen.steps.length && seen.drafts &&
      `${seen.steps.length} steps, ${mean(seen.accepted).toFixed(2)} accepted on average, ` +
      `${Math.max(...seen.accepted)} at most`,
  },
  {
    plot: figure(root, "chart-sizes", { heading: "Drafts verified per step", x: STEP, y: "drafts" }),
    hint: () => "The size of each step's draft tree, the tree budget. Where it is chosen, the totals say by what.",
    traces: () => racers().map((seen) => (
      { name: seen.label, engine: seen.engine, key: seen.label, series: () => [seen.steps, seen.drafted], width: 1.5,
        shape: "vh" })),
    words: (seen) => seen.steps.length && seen.drafts &&
      `${mean(seen.drafted).toFixed(1)} drafts verified a step on average, ${Math.min(...seen.drafted)} to ` +
      `${Math.max(...seen.drafted)}`,
  },
  {
    plot: figure(root, "chart-tau", { heading: "τ and speedup as they run", x: STEP, y: "τ and × plain" }),
    hint: () => (rate() || !run ?
      "Solid: τ, tokens per verify step so far. Dashed: speedup against plain decoding. Ideal is speedup = τ: " +
      "the gap between the two lines of one colour is what drafting costs." :
      "τ, tokens per verify step so far. No speedup is drawn: there is no measured plain decoding to compare with."),
    traces: () => racers().flatMap((seen) => [
      { name: `${seen.label} τ`, engine: seen.engine, key: `${seen.label} τ`, series: () => [seen.steps, seen.tau] },
      { name: `${seen.label} speedup`, engine: seen.engine, key: "speedup", series: () => speedups(seen),
        replaced: true, width: 2, dash: "dash" }, // plain decoding's rate changes while it runs too
    ]),
    words: (seen) => seen.steps.length && seen.drafts &&
      `τ ${seen.tau.at(-1).toFixed(2)}${rate() ? `, speedup ${(seen.rate.at(-1) / rate()).toFixed(2)}` : ""}`,
  },
  {
    plot: figure(root, "chart-positions", {
      heading: "Acceptance by draft position", x: "draft position", y: "of verify steps",
      axes: { x: { dtick: 1, rangemode: "normal" }, y: { range: [0, 1], tickformat: ".0%" } },
    }),
    hint: () => "Of all verify steps, the share that accepted their 1st, 2nd, … draft token.",
    traces: () => racers().map((seen) => (
      { name: seen.label, engine: seen.engine, key: seen.label, series: () => shares(seen), replaced: true,
        bars: true })),
    words: (seen) => seen.steps.length && seen.drafts &&
      shares(seen)[1].map((share, place) => `position ${place + 1} ${Math.round(100 * share)} %`).join(", "),
  },
];

// Accepted tokens over steps or over own clocks -----------------------------------------------------------------
const accepted = CHARTS[1].plot;
const switcher = make("div", "chart-switch");
switcher.setAttribute("role", "group");
switcher.setAttribute("aria-label", "Accepted per step: what the horizontal axis shows");
for (const [name, words] of [[STEP, "by step"], [CLOCK, "by own clock"]]) {
  const button = make("button", "", words);
  button.type = "button";
  button.dataset.axis = name;
  button.addEventListener("click", () => turn(name));
  switcher.append(button);
}
function turn(name) {
  axis = name;
  for (const button of switcher.children) button.setAttribute("aria-pressed", button.dataset.axis === axis);
  accepted.turn(axis);
}
accepted.caption.append(switcher);
turn(axis);

// Where a step's time goes: plain elements ----------------------------------------------------------------------
const STAGES = ["draft", "search", "verify", "rest"];
const stageBox = make("figure", "chart stages");
const stageCaption = make("figcaption");
stageCaption.append(make("h2", "", "Where a step's time goes"));
stageCaption.append(make("p", "hint", "Milliseconds, mean of the verify steps."));
const stageRows = make("div", "stage-rows");
const source = make("p", "hint baseline");
stageBox.append(stageCaption, stageRows, source);
root.append(stageBox);

function stageRow(lane, widest) {
  const row = make("div", "stage-row");
  const bar = make("div", "stage-bar");
  const parts = make("ul", "stage-parts");
  lane.stages.forEach((part, index) => {
    const piece = make("div", `stage ${STAGES[index]}`);
    piece.style.width = `${(100 * part) / widest}%`;
    bar.append(piece);
    const item = make("li", "", `${STAGES[index]} ${part.toFixed(part < 10 ? 2 : 1)}`);
    item.prepend(make("i", `stage ${STAGES[index]}`));
    parts.append(item);
  });
  const total = mean(lane.stages) * lane.stages.length;
  row.append(make("span", "stage-name", lane.label), bar, make("span", "stage-total", `${total.toFixed(1)} ms`), parts);
  return row;
}
function drawStages() {
  const rows = latest.lanes.filter((lane) => lane.accepted);
  const widest = Math.max(1e-9, ...rows.map((lane) => mean(lane.stages) * lane.stages.length));
  stageRows.replaceChildren(...rows.map((lane) => stageRow(lane, widest)));
  if (!rows.length) stageRows.append(make("p", "chart-empty", sentence()));
  const refers = racers().length < lanes.length ? "Speedup refers" : "Speedup and the dotted line refer";
  const [speed, where] = latest.baseline ?? [0, ""];
  put(source, speed ? `${refers} to ${where}: ${speed.toFixed(1)} tokens / s.` : "");
}

// Values in -----------------------------------------------------------------------------------------------------
let begun = new Set(); // charts whose figure is this run's
let waiting = []; // charts with something new to draw
let quiet = 0;
const sentence = () => (run ? "Waiting for the first step." : "Nothing yet: this fills in during a run.");

// Bring the numbers up to the latest value; a new or a shrunken run begins anew.
function absorb() {
  const goes = latest.run === run && latest.lanes.length === lanes.length &&
    latest.lanes.every((lane, place) => lane.engine === lanes[place].engine && grown(lanes[place], lane));
  if (!goes) {
    run = latest.run;
    lanes = latest.lanes.map(fresh);
    begun = new Set();
  }
  latest.lanes.forEach((lane, place) => take(lanes[place], lane));
}

const redraw = paced(() => {
  absorb();
  root.classList.toggle("idle", !run);
  const chart = waiting.shift(), { plot } = chart;
  if (begun.has(chart)) plot.grow();
  else plot.begin(run ? chart.traces() : []);
  begun.add(chart);
  plot.explain(chart.hint(), run && !chart.traces().length ? "No engine of this run drafts." : sentence());
  drawStages();
  if (waiting.length) redraw();
}, REDRAW);

function describe() {
  absorb();
  for (const { plot, words } of CHARTS) {
    const told = lanes.map((seen) => [seen.label, words(seen)]).filter(([, text]) => text);
    plot.describe(told.map(([label, text]) => `${label}: ${text}.`).join(" "));
  }
}

function render(value) {
  if (!value || typeof value !== "object") return;
  latest = value;
  waiting.push(...CHARTS.filter((chart) => !waiting.includes(chart)));
  redraw();
  clearTimeout(quiet);
  quiet = setTimeout(describe, QUIET);
}

let theme = "";
new MutationObserver(() => {
  if (!element.isConnected || theme === (theme = `${color("--ink")} ${scale()}`)) return;
  for (const { plot } of CHARTS) plot.paint();
}).observe(document.body, { attributes: true, attributeFilter: ["class"] });
new ResizeObserver(paced(() => CHARTS.forEach(({ plot }) => plot.fit()), 100)).observe(root);

render(props.value);
watch("value", () => render(props.value));
