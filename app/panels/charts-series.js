// The numbers behind the charts. A lane's series only grow within a run, so only their new ends are read.
const MEAN = 24; // verify steps in the running mean
const SERIES = ["accepted", "drafted", "emitted", "clocks"];

const fresh = (lane) => ({
  engine: lane.engine,
  label: lane.label,
  drafts: lane.engine !== "ar",
  read: { accepted: "", drafted: "", emitted: "", clocks: "" },
  accepted: [], // per verify step, as are all but emitted, clocks and tokens
  drafted: [],
  emitted: [], // per step, the prefill included
  clocks: [],
  tokens: [], // emitted so far, at clocks
  ends: [], // own clock at the end of the step
  steps: [], // 1, 2, …
  mean: [],
  tau: [], // so far
  rate: [], // tokens per second so far, the prefill left out
  reached: [], // how many steps accepted their 1st, 2nd, … draft token
});

const grown = (seen, lane) => SERIES.every((name) => lane[name].startsWith(seen.read[name]));

function take(seen, lane) {
  const news = {};
  for (const name of SERIES) {
    const more = lane[name].slice(seen.read[name].length).split(",").filter(Boolean).map(Number);
    news[name] = more;
    seen[name].push(...more);
    seen.read[name] = lane[name];
  }
  for (const count of news.emitted) seen.tokens.push((seen.tokens.at(-1) ?? 0) + count);
  const prefill = seen.clocks.length - seen.accepted.length; // 1, or 0 where there was none
  const [before, began] = prefill ? [seen.tokens[0], seen.clocks[0]] : [0, 0];
  for (const count of news.accepted) {
    const step = seen.steps.push(seen.steps.length + 1);
    const tokens = seen.tokens[step - 1 + prefill] - before, clock = seen.clocks[step - 1 + prefill];
    const recent = seen.accepted.slice(Math.max(0, step - MEAN), step);
    seen.ends.push(clock);
    seen.mean.push(recent.reduce((sum, part) => sum + part, 0) / recent.length);
    seen.tau.push(tokens / step);
    seen.rate.push(tokens / (clock - began));
    for (let place = 0; place < count; place += 1) seen.reached[place] = (seen.reached[place] ?? 0) + 1;
  }
}
