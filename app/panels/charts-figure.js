// One chart: a heading, a hint, a key, and a Plotly figure that is built once per run and then only grows.
const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const scale = () => Number(color("--scale")) || 1; // a presenter's page is larger
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads tags in names
const CONFIG = { displayModeBar: false };

// What the theme decides, as Plotly.update takes it; every key has two parts.
function looks(traces) {
  const colors = traces.map((trace) => color(`--${trace.engine}`));
  const layout = { "font.color": color("--quiet"), "font.size": 12 * scale() };
  for (const axis of ["xaxis", "yaxis"]) {
    for (const part of ["gridcolor", "zerolinecolor", "linecolor"]) layout[`${axis}.${part}`] = color("--grid");
  }
  return [{ [traces[0].bars ? "marker.color" : "line.color"]: colors }, layout];
}
function dress(target, key, value) {
  const [part, name] = key.split(".");
  target[part] = { ...target[part], [name]: value };
}

// A trace is {name, engine, series, …}: series() gives all its x and y so far. New points are added, or with
// `replaced` all are set anew. Also: key (its words in the key), dash, width, faint, shape, bars.
function figure(root, id, { heading, x, y, axes = {} }) {
  const box = make("figure", "chart");
  const caption = make("figcaption");
  const words = make("p", "hint");
  const key = make("ul", "chart-key");
  const frame = make("div", "plot-frame");
  const plot = make("div", "plot");
  const empty = make("p", "chart-empty");
  plot.id = id;
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", heading);
  caption.append(make("h2", "", heading), words, key);
  frame.append(plot, empty);
  box.append(caption, frame);
  root.append(box);
  let traces = [];

  const shape = (trace) => {
    const hovertemplate = `%{fullData.name}: %{y:${trace.bars ? ".0%" : ".4~g"}}<extra></extra>`;
    const common = { name: plain(trace.name), x: [], y: [], opacity: trace.faint ? 0.45 : 1, hovertemplate };
    if (trace.bars) {
      const pattern = { shape: trace.engine === "eagle3" ? "/" : "", solidity: 0.6 };
      return { ...common, type: "bar", marker: { pattern } };
    }
    const line = { width: trace.width ?? 2.5, dash: trace.dash ?? "solid", shape: trace.shape ?? "linear" };
    return { ...common, mode: "lines", line };
  };
  const sample = (trace) => {
    const item = make("li", "", trace.key);
    item.prepend(make("i", `sample ${trace.bars ? "bar" : trace.dash ?? "solid"} ${trace.engine}`));
    return item;
  };

  // For a new run. Without traces: the sentence of `empty` alone.
  function begin(given) {
    if (traces.length && !given.length) Plotly.purge(plot);
    traces = given;
    key.replaceChildren(...traces.filter((trace) => trace.key).map(sample));
    if (!traces.length) return box.classList.remove("drawn");
    const axis = { rangemode: "tozero", fixedrange: true, automargin: true };
    const layout = {
      margin: { l: 44, r: 12, t: 8, b: 38 }, showlegend: false, dragmode: false, hovermode: "closest",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", bargap: 0.25, bargroupgap: 0.08,
      font: { family: getComputedStyle(root).fontFamily },
      xaxis: { ...axis, ...axes.x, title: { text: x, standoff: 6 } },
      yaxis: { ...axis, ...axes.y, title: { text: y, standoff: 6 } },
    };
    const shapes = traces.map(shape), [style, colors] = looks(traces);
    for (const [name, values] of Object.entries(style)) shapes.forEach((one, place) => dress(one, name, values[place]));
    for (const [name, value] of Object.entries(colors)) dress(layout, name, value);
    Plotly.react(plot, shapes, layout, CONFIG);
    grow();
  }

  function grow() {
    const news = { x: [], y: [], at: [] };
    let replaced = false, points = 0;
    const keys = [...key.children];
    traces.forEach((trace, index) => {
      const [xs, ys] = trace.series(), drawn = plot.data[index], had = drawn.x.length;
      points += xs.length;
      if (trace.key) keys.shift().hidden = !xs.length;
      if (trace.replaced) {
        replaced ||= had + xs.length > 0;
        Object.assign(drawn, { x: [...xs], y: [...ys] });
      } else if (xs.length > had) {
        news.x.push(xs.slice(had));
        news.y.push(ys.slice(had));
        news.at.push(index);
      }
    });
    box.classList.toggle("drawn", points > 0);
    if (news.at.length) Plotly.extendTraces(plot, { x: news.x, y: news.y }, news.at);
    else if (replaced) Plotly.redraw(plot);
  }

  return {
    caption, begin, grow,
    explain(hint, sentence) {
      put(words, hint);
      put(empty, sentence);
    },
    describe: (text) => plot.setAttribute("aria-label", `${heading}. ${text || empty.textContent}`),
    paint() {
      if (traces.length) Plotly.update(plot, ...looks(traces));
    },
    turn(text) { // the same points over another x
      x = text;
      if (!traces.length) return;
      grow();
      Plotly.update(plot, { x: traces.map((trace) => [...trace.series()[0]]) }, { "xaxis.title.text": x });
    },
    fit() {
      if (traces.length && plot.offsetParent) Plotly.Plots.resize(plot);
    },
  };
}
