// One engine's panel. The value carries the whole text and its marks; only what is new is added to the page.
const root = element.firstElementChild;
const title = make("h2", "lane-title");
const tagline = make("p", "lane-tagline");
const state = make("span", "lane-state");
const backend = make("span", "lane-backend");
const head = make("header", "lane-head");
const chips = make("div", "lane-chips");
chips.append(backend, state);
head.append(title, chips, tagline);

const figures = make("dl", "lane-figures");
const figure = (label, hint) => {
  const box = make("div", "figure");
  const name = make("dt", "", label);
  name.title = hint;
  const number = make("dd", "", "–");
  box.append(name, number);
  figures.append(box);
  return number;
};
const rate = figure("tokens / s", "Tokens of verify steps ÷ seconds of this engine's own verify steps; the prefill counts in neither");
const tau = figure("τ tokens / step", "Tokens emitted by verify steps ÷ verify steps, the target's own token included");
const speedup = figure("× plain", "tokens / s ÷ the measured tokens / s of plain decoding (which one: below the charts)");

const bubble = (words) => {
  const box = make("div", "said");
  box.append(make("span", "who", "You"), make("span", "words", words));
  return box;
};
const body = make("div", "lane-text");
body.tabIndex = 0;
body.setAttribute("role", "region");
const earlier = make("div", "turns");
const asked = bubble("");
const flow = make("div", "flow"); // the present answer, token by token
const sheet = make("div", "rendered"); // the same as a document
const empty = make("p", "lane-empty");
body.append(earlier, asked, flow, sheet, empty);
const told = make("p", "lane-here");
const frame = make("div", "lane-frame");
frame.append(body, told);

const details = make("p", "lane-details");
const views = make("div", "lane-views");
views.setAttribute("role", "group");
views.setAttribute("aria-label", "How the answer is shown");
for (const [name, label] of [["tokens", "Tokens"], ["rendered", "Rendered"]]) {
  const button = make("button", "", label);
  button.type = "button";
  button.dataset.view = name;
  button.addEventListener("click", () => show(name));
  views.append(button);
}
const foot = make("div", "lane-foot");
foot.append(details, views);
const note = make("p", "lane-note");
root.append(head, figures, frame, foot, note);

const STATES = { idle: "ready" }; // the others are called what they are
const MAKERS = { d: "accepted draft", t: "the target's own", p: "the target's own, from the prefill" };
const RECORD = /([|,]?)(?:([dtp])(\d+)(?::(\d+))?|\+(\d+))/y;

let run = null, engine = "", turns = [], marks = "", text = "", used = 0, step = 0, depth = 0, picked = -1;
let tokens = []; // {step, depth, maker, percent, start, node}
let line = null; // the block that grows: one block per line, so that the browser lays out only the last
let pinned = true; // the visitor looks at the end, which is where the text grows
let cut = -1, parting = null; // where the texts part, and the token that shows it
let here = -1; // the token that the visitor stands on
let view = "tokens", filled = false, ticket = 0; // which view, whether the document is there, its last request

function reset() {
  marks = text = "";
  used = step = depth = 0;
  picked = cut = -1;
  parting = line = null;
  pinned = true;
  stand(-1);
  tokens = [];
  flow.replaceChildren();
  filled = false;
  show("tokens");
}

function take(value) {
  RECORD.lastIndex = marks.length;
  for (let found; RECORD.lastIndex < value.marks.length && (found = RECORD.exec(value.marks)); ) {
    const [, mark, maker, length, percent, more] = found;
    if (mark === "|") { step += 1; depth = 0; }
    if (more !== undefined) {
      const last = tokens.at(-1);
      const tail = value.text.slice(used, (used += Number(more)));
      if (last) last.node.textContent += tail;
      continue;
    }
    depth += 1;
    const node = make("span", `tok ${maker}`, value.text.slice(used, used + Number(length)));
    node.dataset.at = tokens.length;
    tokens.push({ step, depth, maker, percent, start: used, node });
    used += Number(length);
    if (!line) flow.append((line = make("div", "line")));
    line.append(node);
    if (node.textContent.endsWith("\n")) line = null; // a line break at a block's end takes no room of its own
  }
  marks = value.marks;
  text = value.text;
  filled = false;
}

// What was said before; it stays while a run is on.
function recall(before) {
  const same = (turn, at) => turn[0] === turns[at][0] && turn[1] === turns[at][1];
  if (before.length === turns.length && before.every(same)) return;
  turns = before;
  earlier.replaceChildren(...turns.map(([prompt, answer]) => {
    const turn = make("div", "turn");
    turn.append(bubble(prompt), make("div", "answer", answer));
    return turn;
  }));
}

function part(where) {
  if (where === cut && (parting || cut < 0)) return;
  cut = where;
  if (parting) {
    parting.node.classList.remove("cut");
    parting.node.removeAttribute("title");
  }
  parting = cut < 0 ? null : tokens.find((token) => token.start >= cut) ?? null;
  if (!parting) return;
  parting.node.classList.add("cut");
  parting.node.title = about(parting);
}

function about(token) {
  const parted = token === parting ? "The texts part here. This token: " : "";
  const chance = token.percent === undefined ? "" : `, ${token.percent} % by its drafter`;
  return `${parted}${MAKERS[token.maker]}${chance} · step ${token.step}, token ${token.depth} of it`;
}

function render(value) {
  if (!value || typeof value !== "object") return;
  const same = value.run === run && value.engine === engine;
  if (!same || !value.marks.startsWith(marks) || !value.text.startsWith(text)) reset();
  run = value.run;
  root.dataset.engine = engine = value.engine;
  root.dataset.state = value.state;
  put(title, value.label);
  put(tagline, value.tagline);
  put(state, STATES[value.state] ?? value.state);
  put(backend, value.backend && engine === "dart" ? `${value.backend} pruner` : "");
  body.setAttribute("aria-label", `${value.label} output`);
  put(rate, value.rate);
  put(tau, value.tau);
  put(speedup, value.speedup);
  speedup.classList.toggle("slower", Boolean(value.slower));
  put(details, value.details);
  put(note, value.note);
  const idle = value.state === "waiting" ? "Waiting for its turn …" : "Press Run.";
  put(empty, value.text || value.state === "running" ? "" : idle);
  recall(value.turns ?? []);
  put(asked.lastChild, value.prompt ?? "");
  asked.hidden = !value.prompt;
  const grown = value.marks.length > marks.length;
  if (grown) take(value);
  if (pinned && (grown || !same)) requestAnimationFrame(() => { body.scrollTop = body.scrollHeight; });
  part(value.cut);
  views.hidden = !text || !["done", "stopped"].includes(value.state);
  if (views.hidden) show("tokens");
}

// The two views --------------------------------------------------------------------------------------------------

async function show(wanted) {
  if (wanted === view && (view === "tokens" || filled)) return;
  view = wanted;
  const mine = (ticket += 1);
  press();
  body.scrollTop = asked.offsetTop - 8; // the answer from its start
  if (view === "tokens" || filled) return;
  sheet.replaceChildren(make("p", "lane-empty", "Rendering …"));
  const html = await server.rendered(run, engine); // undefined where Gradio got no answer
  if (mine !== ticket) return; // another run, or back to the tokens
  filled = Boolean(html);
  const lost = html === undefined ? "The server did not answer." : "The server no longer keeps this run.";
  sheet.replaceChildren(filled ? sanitised(html) : make("p", "lane-empty", `${lost} Its tokens are still here.`));
  body.scrollTop = asked.offsetTop - 8;
}

function press() {
  flow.hidden = view !== "tokens";
  sheet.hidden = view !== "rendered";
  stand(-1);
  for (const button of views.children) button.setAttribute("aria-pressed", button.dataset.view === view);
}

// The server's HTML is made safe there; this trusts none of it. DOMParser runs and fetches nothing, and what goes
// onto the page is built anew from elements, classes and attributes that are known to do nothing.
const ELEMENTS = new Set(("P H3 H4 H5 H6 UL OL LI BLOCKQUOTE PRE CODE EM STRONG S HR BR TABLE THEAD TBODY TR TH TD "
  + "A SPAN DETAILS SUMMARY").split(" "));
const CLASSES = new Set(["thinking", "picture", "right", "center"]);
function sanitised(html) {
  const copied = (from, to) => {
    for (const part of from.childNodes) {
      if (part.nodeType === Node.TEXT_NODE) to.append(part.data);
      if (part.nodeType !== Node.ELEMENT_NODE) continue;
      if (!ELEMENTS.has(part.tagName)) { to.append(part.textContent); continue; }
      const node = make(part.tagName, CLASSES.has(part.className) ? part.className : "");
      const address = part.getAttribute("href") ?? "";
      if (part.tagName === "A" && /^(https?:\/\/|mailto:)/i.test(address)) {
        Object.assign(node, { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
      }
      const start = part.getAttribute("start");
      if (part.tagName === "OL" && /^\d{1,9}$/.test(start)) node.start = start;
      if (part.tagName === "PRE") node.tabIndex = 0; // long lines scroll sideways
      to.append(copied(part, node));
    }
    return to;
  };
  return copied(new DOMParser().parseFromString(html, "text/html").body, document.createDocumentFragment());
}

// Tokens by mouse and by keyboard --------------------------------------------------------------------------------

function pick(chosen) {
  if (chosen === picked) return;
  for (const token of tokens) {
    if (token.step === picked) token.node.classList.remove("picked");
    if (token.step === chosen) token.node.classList.add("picked");
  }
  picked = chosen;
}
function choose(token) {
  if (token?.step > 0) tell("arena:step", { engine, step: token.step });
}
// Stand on a token: it is marked, and a line below the text says what the mouse's title says.
function stand(at) {
  tokens[here]?.node.classList.remove("here");
  const token = tokens[at];
  here = token ? at : -1;
  put(told, token ? `“${visible(token.node.textContent)}” ${about(token)}` : "");
  if (!token) return;
  token.node.classList.add("here");
  token.node.scrollIntoView({ block: "nearest" });
}

body.addEventListener("scroll", () => {
  pinned = body.scrollHeight - body.scrollTop - body.clientHeight < 40;
}, { passive: true });
body.addEventListener("keydown", (event) => {
  if (event.target !== body || flow.hidden || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter") choose(tokens[here]);
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  event.preventDefault();
  const last = tokens.length - 1;
  if (event.key === "ArrowRight") stand(Math.min(here + 1, last));
  else stand(here < 0 ? last : Math.max(here - 1, 0));
});
body.addEventListener("blur", () => stand(-1));
flow.addEventListener("mouseover", (event) => {
  const token = tokens[event.target.dataset?.at];
  if (token && !token.node.title) token.node.title = about(token);
});
flow.addEventListener("click", (event) => {
  if (!event.target.dataset?.at) return;
  stand(Number(event.target.dataset.at));
  choose(tokens[here]);
});
listen("arena:step", (chosen) => pick(chosen.engine === engine ? chosen.step : -1));

press();
render(props.value);
watch("value", () => render(props.value));
