"use strict";
// The page of a job: draws charts, and follows a job that runs. The file report.html has the same
// script, with its data beside it.

const plots = new Map(); // name of a chart -> {chart, plot, figure}
const query = (text, within = document) => within.querySelector(text);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const clock = (seconds) => {
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
};
const short = (n) => {
  if (n === null || n === undefined) return "-";
  if (Math.abs(n) >= 1e4) return Math.round(n).toLocaleString("en");
  return Number.isInteger(n) ? String(n) : String(Number(n.toPrecision(4)));
};
const few = (n) => (Math.abs(n) >= 1e6 ? `${short(n / 1e6)} M` : short(n));
const along = (chart, x) => (chart.over === "time" ? clock(x) : `${short(x)} samples`);

// ------------------------------------------------------------------ what is drawn over the lines

function labels(marks, u) {
  // Marks that are too close to be told apart share one label: "3-5".
  const found = [], least = 16 * devicePixelRatio;
  for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
    const x = u.valToPos(mark.at, "x", true), last = found.at(-1);
    if (last && x - last.end < least) Object.assign(last, { end: x, to: mark.label });
    else found.push({ x, end: x, from: mark.label, to: mark.label, colour: mark.colour });
  }
  return found;
}

function shape(ctx, kind, x, y, r) {
  ctx.beginPath();
  if (kind === "x") {
    ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r);
    ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r);
    return ctx.stroke();
  }
  const corners = {
    v: [[-1, -1], [1, -1], [0, 1]], "^": [[-1, 1], [1, 1], [0, -1]],
    D: [[0, -1], [1, 0], [0, 1], [-1, 0]], s: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
  }[kind];
  if (!corners) ctx.arc(x, y, r, 0, 2 * Math.PI);
  else corners.forEach(([dx, dy], k) => ctx[k ? "lineTo" : "moveTo"](x + r * dx, y + r * dy));
  ctx.fill();
}

function annotations(name) {
  const chart = () => plots.get(name).chart;
  const clipped = (u, draw) => {
    const { ctx, bbox } = u;
    ctx.save();
    draw(ctx, bbox);
    ctx.restore();
  };
  const below = (u) => clipped(u, (ctx, box) => {
    for (const band of chart().bands) {
      const [a, b] = [band.since, band.until].map((x) => u.valToPos(x, "x", true));
      ctx.globalAlpha = 0.14;
      ctx.fillStyle = band.colour;
      ctx.fillRect(a, box.top, Math.max(1, b - a), box.height);
    }
  });
  const above = (u) => clipped(u, (ctx, box) => {
    const unit = devicePixelRatio;
    ctx.font = `${11 * unit}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.lineWidth = unit;
    for (const mark of chart().marks) {
      const x = u.valToPos(mark.at, "x", true);
      ctx.strokeStyle = mark.colour;
      ctx.setLineDash(mark.dash.map((n) => n * unit));
      ctx.beginPath(); ctx.moveTo(x, box.top); ctx.lineTo(x, box.top + box.height); ctx.stroke();
    }
    for (const one of labels(chart().marks, u)) {
      ctx.fillStyle = one.colour;
      const text = one.from === one.to ? one.from : `${one.from}\u2013${one.to}`;
      ctx.fillText(text, (one.x + one.end) / 2, box.top - 4 * unit);
    }
    ctx.setLineDash([]);
    chart().dots.forEach((dots, row) => {
      ctx.fillStyle = ctx.strokeStyle = dots.colour;
      const y = dots.low ? box.top + box.height - 6 * unit : box.top + (6 + 11 * row) * unit;
      for (const at of dots.at) shape(ctx, dots.shape, u.valToPos(at, "x", true), y, 4 * unit);
    });
  });
  return { hooks: { drawClear: [below], draw: [above] } };
}

// ------------------------------------------------------------------ one chart

// The value under the pointer; where no pointer is, the newest one.
function pointed(u, at, i) {
  const values = u.data[at];
  return i === null || i === undefined ? values.findLast((v) => v !== null) ?? null : values[i];
}

function series(chart) {
  const ink = { show: chart.columns[0].length <= 30 };
  return chart.series.map((one) => ({
    label: one.name, stroke: one.faint ? one.colour + "73" : one.colour, width: one.width,
    dash: one.dash, points: ink, value: (u, _, at, i) => short(pointed(u, at, i)), spanGaps: chart.joined,
    paths: one.steps && uPlot.paths.stepped({ align: one.steps === "after" ? 1 : -1 }) || undefined,
  }));
}

function range(chart) {
  return (_, low, high) => {
    if (low === null || low === undefined) return chart.log ? [1, 10] : [0, 1];
    if (chart.log) {
      const floor = 10 ** Math.floor(Math.log10(low)), ceil = 10 ** Math.ceil(Math.log10(high));
      return [low / floor > 5 ? 5 * floor : floor, ceil === floor ? 10 * ceil : ceil];
    }
    const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
    const top = chart.top ?? high + (chart.whole ? 0.5 : room);
    return [chart.zero ? 0 : low - room, Math.max(top, chart.zero ? 1e-9 : low + 1e-12)];
  };
}

function options(chart, width) {
  const ink = () => css("--faint"), grid = { stroke: () => css("--line"), width: 1 };
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];
  const time = chart.over === "time";
  const inch = (_, values) => values.map((v) => (v === null ? "" : few(v)));
  return {
    width, height: chart.small ? 190 : 220, padding: [chart.marks.length ? 18 : 8, 12, 0, 0],
    cursor: { sync: { key: chart.over }, drag: { x: true, y: false } },
    scales: { x: { time: false, range: (_, a, b) => zoomed(chart.name) ?? [0, chart.until] },
              y: { distr: chart.log ? 3 : 1, range: range(chart) } },
    axes: [
      { ...axis, size: 28, ...(time && { incrs: steps }), space: 70,
        values: (_, values) => values.map(time ? clock : few) },
      { ...axis, size: 62, values: inch, label: chart.small ? undefined : chart.unit, labelFont: font,
        labelSize: 16, ...(chart.whole && { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }) },
    ],
    series: [{ label: time ? "time" : "samples", value: (u, _, at, i) => {
                 const x = pointed(u, at, i);
                 return x === null ? "-" : along(chart, x);
               } },
             ...series(chart)],
    legend: { live: true },
    plugins: [annotations(chart.name)],
    hooks: { setSelect: [(u) => select(chart.name, u)] },
  };
}

const zooms = new Map(); // name of a chart -> [from, to]; a double click ends it
const zoomed = (name) => zooms.get(name);
function select(name, u) {
  if (u.select.width < 4) return;
  zooms.set(name, [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
  u.setSelect({ width: 0, height: 0 }, false);
  u.setData(plots.get(name).chart.columns);
}

function draw(chart) {
  const figure = query(`figure[data-chart="${CSS.escape(chart.name)}"]`);
  if (!figure) return;
  plots.get(chart.name)?.plot.destroy();
  const place = query(".plot", figure), entry = { chart, figure };
  plots.set(chart.name, entry);
  entry.plot = new uPlot(options(chart, place.clientWidth || 600), chart.columns, place);
  place.ondblclick = () => { zooms.delete(chart.name); entry.plot.setData(entry.chart.columns); };
  place.onkeydown = (event) => walk(event, entry);
  query("details", figure).ontoggle = () => tabulate(entry);
  describe(entry);
}

function describe({ chart, figure }) {
  // What an ear needs of a picture: where each line begins, ends, and how far it goes.
  const [xs, ...lines] = chart.columns;
  const told = chart.series.slice(0, 8).map((one, k) => {
    const at = xs.map((x, i) => i).filter((i) => lines[k][i] !== null);
    if (!at.length) return `${one.name}: no value`;
    const values = at.map((i) => lines[k][i]), low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b)), [first, last] = [values[0], values.at(-1)];
    return `${one.name}: ${short(first)} at first, ${short(last)} at ${along(chart, xs[at.at(-1)])}, ` +
      `lowest ${short(low)}, highest ${short(high)}`;
  });
  const title = chart.title || chart.unit, more = chart.series.length > 8 ? "; and more lines" : "";
  query(".plot", figure).setAttribute("aria-label", `${title}. ${told.join(". ")}${more}`);
}

function walk(event, { chart, plot, figure }) {
  // The arrow keys move through the points, and say what is there.
  const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
  if (!step) return;
  event.preventDefault();
  const most = chart.columns[0].length - 1, now = plot.cursor.idx ?? (step > 0 ? -1 : most + 1);
  const at = Math.max(0, Math.min(most, now + step));
  plot.setCursor({ left: plot.valToPos(chart.columns[0][at], "x"), top: 10 });
  const values = chart.series.map((one, k) => `${one.name} ${short(chart.columns[k + 1][at])}`);
  query("[aria-live]", figure).textContent = `${along(chart, chart.columns[0][at])}: ${values.join(", ")}`;
}

function tabulate({ chart, figure }) {
  const details = query("details", figure), place = query("div", details);
  if (!details.open) return;
  const count = chart.columns[0].length, most = 24;
  const rows = [...Array(Math.min(count, most)).keys()].map((k) =>
    count <= most ? k : Math.round((k * (count - 1)) / (most - 1)));
  const table = document.createElement("table"), cell = (row, tag, text) => {
    row.appendChild(document.createElement(tag)).textContent = text;
  };
  table.className = "numbers";
  const head = table.insertRow();
  [chart.over, ...chart.series.map((one) => one.name)].forEach((name) => cell(head, "th", name));
  for (const at of rows) {
    const row = table.insertRow();
    chart.columns.forEach((column, k) => cell(row, "td", k ? short(column[at]) : along(chart, column[at])));
  }
  place.replaceChildren(table);
}

// ------------------------------------------------------------------ width, colours, paper

function fit() {
  for (const { plot, figure, chart } of plots.values()) {
    const width = query(".plot", figure).clientWidth;
    if (width && width !== plot.width) plot.setSize({ width, height: chart.small ? 190 : 220 });
  }
}
let fitting = 0;
addEventListener("resize", () => { cancelAnimationFrame(fitting); fitting = requestAnimationFrame(fit); });
const repaint = () => plots.forEach(({ plot }) => plot.redraw(false, true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
matchMedia("print").addEventListener("change", () => { fit(); repaint(); });
addEventListener("beforeprint", () => { fit(); repaint(); });
addEventListener("afterprint", () => { fit(); repaint(); });

// ------------------------------------------------------------------ what a message changes

function setBlock(place, html) {
  if (place.dataset.html === html) return;
  place.dataset.html = html;
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.id));
  const known = place.childElementCount > 0;
  const tails = new Map([...place.querySelectorAll("[data-tail]")].map((one) =>
    [one.parentElement.id, one.scrollTop + one.clientHeight < one.scrollHeight - 8 && one.scrollTop]));
  const checked = new Set([...place.querySelectorAll("input:checked")].map((one) => one.value));
  const focused = place.contains(document.activeElement) && document.activeElement.dataset.focus;
  place.innerHTML = html;
  for (const one of place.querySelectorAll("input")) one.checked = checked.has(one.value);
  if (focused) query(`[data-focus="${CSS.escape(focused)}"]`, place)?.focus({ preventScroll: true });
  for (const one of place.querySelectorAll("details[id]")) if (known) one.open = open.has(one.id);
  for (const one of place.querySelectorAll("[data-tail]")) {
    one.scrollTop = tails.get(one.parentElement.id) || one.scrollHeight; // who reads back stays there
  }
}

function setBlocks(message) {
  const page = query("#page"), seen = new Set(message.order.map(([name]) => `b-${name}`));
  for (const one of [...page.children]) if (!seen.has(one.id)) one.remove();
  message.order.forEach(([name, wide], at) => {
    let place = document.getElementById(`b-${name}`);
    if (!place) {
      place = document.createElement("section");
      place.id = `b-${name}`;
    }
    place.className = wide ? "wide" : "small";
    if (page.children[at] !== place) page.insertBefore(place, page.children[at] ?? null);
    if (name in message.blocks) setBlock(place, message.blocks[name]);
  });
}

function setChart(name, change) {
  const entry = plots.get(name);
  if (change.chart) return draw(change.chart);
  if (!entry) return;
  change.columns.forEach((more, k) => entry.chart.columns[k].splice(change.from, Infinity, ...more));
  entry.chart.until = change.until;
  if (!document.hidden) entry.plot.setData(entry.chart.columns);
  describe(entry);
}

function show(message) {
  if (message.order) setBlocks(message);
  if (message.title !== undefined) {
    query("#title").textContent = message.title;
    query("#state").textContent = message.state;
    document.title = `${message.title}: ${message.state}`;
  }
  for (const name of message.gone ?? []) { plots.get(name)?.plot.destroy(); plots.delete(name); }
  for (const [name, change] of Object.entries(message.charts ?? {})) setChart(name, change);
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) plots.forEach(({ plot, chart }) => plot.setData(chart.columns));
});

const kept = query("#charts");
if (kept) JSON.parse(kept.textContent).forEach(draw);
