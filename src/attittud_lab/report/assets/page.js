"use strict";
// Draws the curves of the page. What comes from the data reaches the page as text only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const metric = `validation/${data.metric}`;
  const state = { table: data.open, x: "step", curve: metric, row: data.row, part: "harmful", hidden: new Set() };
  const PARTS = ["helpful", "harmful", "neutral"];
  let plots = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const percent = (value) => (value == null ? "" : `${(100 * value).toFixed(1)} %`);
  const number = (value) => (value == null ? "" : String(Number(value.toPrecision(4))));
  const isShare = (name) => /accuracy|f1|auc|share|captured/.test(name);
  const shown = (name) => (isShare(name) ? percent : number);

  function switcher(place, options, get, set) {
    place.replaceChildren(...(options.length < 2 ? [] : options.map(([value, text]) => {
      const button = make("button", "", text);
      button.type = "button";
      button.dataset.value = value;
      button.setAttribute("aria-pressed", String(get() === value));
      button.addEventListener("click", () => { set(value); update(); });
      return button;
    })));
  }

  function section(title, about) {
    const element = make("section");
    element.append(make("h2", "", title));
    if (about) element.append(make("p", "about", about));
    return element;
  }

  const rows = () => data.curves[state.table] || [];
  // Only the guided phase has shares.
  const guided = () => rows().filter((row) => row.train["share/helpful"]).map((row) => {
    const kept = row.train["share/helpful"].map((value) => value != null);
    const train = Object.fromEntries(Object.entries(row.train).map(([name, values]) => [name, values.filter((_, i) => kept[i])]));
    return { ...row, train };
  });

  // ------------------------------------------------------------------------------------------------ plots

  function plot(place, { x, series, bands, format, range, legend, marks = [] }) {
    const grid = { stroke: color("line"), width: 1 };
    const axis = { stroke: color("soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const holder = make("div", "chart");
    place.append(holder);
    const figure = new uPlot({
      width: Math.max(240, holder.clientWidth), height: 260, padding: [8, 18, 0, 0],
      scales: { x: { time: false }, y: range ? { range } : {} },
      axes: [
        { ...axis, size: 34, label: state.x, labelSize: 16, labelFont: axis.font, values: (_, ticks) => ticks.map((tick) => (state.x === "seconds" ? `${number(tick)} s` : tick)) },
        { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (format === percent ? `${number(100 * tick)} %` : number(tick))) },
      ],
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      series: [{}, ...series],
      bands,
      hooks: {
        setCursor: [(self) => legend && legend(self.cursor.idx)],
        draw: [(self) => marks.forEach((mark) => drawMark(self, mark))],
      },
    }, [x, ...series.map((one) => one.ys)], holder);
    plots.push({ figure, holder });
    return figure;
  }

  function drawMark(figure, { at, text }) {
    const { ctx, bbox } = figure;
    const x = Math.round(figure.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("soft");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.fillText(text, x - 4 * devicePixelRatio, bbox.top + bbox.height - 6 * devicePixelRatio);
    ctx.restore();
  }

  // Strategies have x values of their own, so all are brought to the union of them.
  function aligned(list, source, name) {
    const xs = [...new Set(list.flatMap((row) => row[source][state.x] || []))].sort((a, b) => a - b);
    const at = new Map(xs.map((x, i) => [x, i]));
    const values = (row, key) => {
      const found = new Array(xs.length).fill(undefined);
      (row[source][key] || []).forEach((value, i) => { found[at.get(row[source][state.x][i])] = value; });
      return found;
    };
    return { xs, values: (row) => values(row, name), low: (row) => values(row, `${name}/low`), high: (row) => values(row, `${name}/high`) };
  }

  // One point makes no picture: its figures are told.
  function say(place, words, at) {
    place.append(make("p", "", `${words.join(", ")} (measured once, at ${state.x} ${number(at)}).`));
  }

  function keys(entries, toggle) {
    const box = make("div", "legend");
    const outputs = entries.map(({ label, stroke, dash }) => {
      const key = make(toggle ? "button" : "span", "key");
      const swatch = make("i", dash ? (dash[0] === 2 ? "dotted" : "dashed") : "");
      swatch.style.color = stroke;
      const output = make("output");
      key.append(swatch, make("span", "", label), output);
      if (toggle) {
        key.type = "button";
        key.setAttribute("aria-pressed", String(!state.hidden.has(label)));
        key.addEventListener("click", () => {
          if (!state.hidden.delete(label)) state.hidden.add(label);
          update();
        });
      }
      box.append(key);
      return output;
    });
    return [box, (values) => values.forEach((value, i) => { outputs[i].textContent = value; })];
  }

  // Where a phase begins, if it does so at one place for all.
  function sharedPhases(list) {
    return (list[0].phases || []).slice(1)
      .map(({ name, [state.x]: at }) => ({ at, text: `${name} →` }))
      .filter(({ at }) => list.every((row) => row.phases.some((phase) => phase[state.x] === at)));
  }

  const nearest = (values, index) => {
    for (let i = index; i >= 0; i--) if (values[i] != null) return values[i];
    return null;
  };

  function learning(place) {
    const source = state.curve.startsWith("validation/") ? "validation" : "train";
    const all = rows();
    const list = all.filter((row) => row[source][state.curve] && !state.hidden.has(row.label));
    const { xs, values, low, high } = aligned(list, source, state.curve);
    const stroke = (row) => color(row.color || "accent"); // a single run has no colour of its own
    const dash = (row) => (row.dash ? row.dash.split(" ").map(Number) : undefined);
    const series = list.map((row) => ({
      ys: values(row), stroke: stroke(row), width: 2, spanGaps: true, points: { show: xs.length < 40, size: 4 },
      dash: dash(row),
    }));
    const bands = [];
    list.forEach((row) => {
      if (!row[source][`${state.curve}/low`]) return;
      series.push({ ys: high(row), width: 0, spanGaps: true, points: { show: false } });
      series.push({ ys: low(row), width: 0, spanGaps: true, points: { show: false } });
      bands.push({ series: [series.length - 1, series.length], fill: `${stroke(row)}1c` });
    });
    const [box, write] = keys(all.map((row) => ({ label: row.label, stroke: stroke(row), dash: dash(row) })), all.length > 1);
    const format = shown(state.curve);
    if (xs.length === 1) {
      say(place, list.map((row) => `${row.label}: ${format(row[source][state.curve][0])}`), xs[0]);
      return;
    }
    if (list.length && xs.length) {
      plot(place, {
        x: xs, series, bands, format,
        marks: sharedPhases(list),
        legend: (index) => write(all.map((row) => {
          const i = list.indexOf(row);
          return i < 0 || index == null ? "" : format(nearest(series[i].ys, index));
        })),
      });
    }
    place.append(box);
  }

  // A series without a picture: its words and where it was measured, if that is one step or its value never changes.
  function told(place, row, names, format) {
    const values = names.map(([name]) => row.train[name].filter((value) => value != null));
    const last = names.map(([, label], i) => `${label}: ${format(values[i].at(-1))}`);
    if (values.every((one) => one.length < 2)) say(place, last, row.train[state.x][0]);
    else if (values.every((one) => one.every((value) => value === one[0]))) place.append(make("p", "", `${last.join(", ")}, at every step.`));
    else return false;
    return true;
  }

  function lines(place, row, names, options = {}) {
    const present = names.filter(([name]) => row.train[name]);
    if (!present.length) return false;
    const format = shown(present[0][0]);
    if (told(place, row, present, format)) return true;
    const series = present.map(([name, , stroke]) => ({ ys: row.train[name], stroke: color(stroke), width: 2, spanGaps: true, points: { show: false } }));
    const [box, write] = keys(present.map(([, label, stroke]) => ({ label, stroke: color(stroke) })));
    plot(place, {
      x: row.train[state.x], series, format, range: options.range,
      legend: (index) => write(series.map((one) => (index == null ? "" : format(one.ys[index])))),
    });
    place.append(box);
    return true;
  }

  function weights(place, row) {
    const end = "weight_neutral";
    for (const name of Object.keys(row.train).filter((one) => one.endsWith(end))) {
      const prefix = name.slice(0, -end.length);
      const source = prefix.slice("attittud/".length, -1);
      const box = section(`Weights of the three parts${source ? `: ${source}` : ""}`, row.weights[`${prefix}weight_`].text);
      place.append(box);
      // The neutral line, which is often the same as another one, lies below the others.
      lines(box, row, [...PARTS].reverse().map((part) => [`${prefix}weight_${part}`, part, part]), { range: () => [0, 1.05] });
    }
  }

  function stacked(place, row) {
    if (told(place, row, PARTS.map((part) => [`share/${part}`, part]), percent)) return;
    let sum = row.train[state.x].map(() => 0);
    const tops = PARTS.map((part) => {
      sum = sum.map((below, i) => (row.train[`share/${part}`][i] == null ? null : below + row.train[`share/${part}`][i]));
      return sum;
    });
    // From the top down: each area is painted over the one above it.
    const series = [...PARTS.keys()].reverse().map((i) => ({
      ys: tops[i], stroke: color(PARTS[i]), width: 1, fill: color(PARTS[i]), spanGaps: true, points: { show: false },
    }));
    const [box, write] = keys(PARTS.map((part) => ({ label: part, stroke: color(part) })));
    plot(place, {
      x: row.train[state.x], series, format: percent, range: [0, 1],
      legend: (index) => write(PARTS.map((part) => (index == null ? "" : percent(row.train[`share/${part}`][index])))),
    });
    place.append(box);
  }

  function heat(place, row) {
    const { names, step } = row.layers;
    const values = row.layers[state.part];
    const top = Math.max(1e-9, ...values.flat().filter((value) => value != null));
    const grid = make("div", "heat");
    grid.style.gridTemplateColumns = `minmax(72px, 180px) repeat(${step.length}, minmax(0, 1fr))`;
    grid.style.setProperty("--part", `var(--${state.part})`);
    const output = make("p", "note hint", "Point at a cell, or tap it, to read it.");
    names.forEach((name, i) => {
      const label = make("div", "name", name);
      label.title = name;
      grid.append(label);
      step.forEach((at, j) => {
        const cell = make("div", "cell");
        cell.style.setProperty("--share", `${values[i][j] == null ? 0 : (100 * values[i][j]) / top}%`);
        cell.title = `${name}, step ${at}: ${percent(values[i][j])} ${state.part}`;
        cell.addEventListener("pointerenter", () => { output.textContent = cell.title; });
        grid.append(cell);
      });
    });
    const scale = make("p", "note");
    const ramp = make("i", "scale");
    ramp.style.setProperty("--part", `var(--${state.part})`);
    scale.append("0 %", ramp, `${percent(top)} of the layer's auxiliary gradient, from step ${step[0]} to ${step[step.length - 1]}`);
    place.append(grid, scale, output);
  }

  // ------------------------------------------------------------------------------------------------ page

  function controls(place, ...boxes) {
    const box = make("div", "controls");
    box.append(...boxes);
    place.append(box);
  }

  function chooseRow(list) {
    const select = make("select");
    select.setAttribute("aria-label", "strategy");
    select.dataset.choose = "row";
    list.forEach((row) => {
      const option = make("option", "", row.label);
      option.value = row.label;
      option.selected = row.label === state.row;
      select.append(option);
    });
    select.addEventListener("change", () => { state.row = select.value; update(); });
    return select;
  }

  function update() {
    document.querySelectorAll(".table").forEach((table, i) => { table.hidden = i !== state.table; });
    switcher(document.querySelector("[data-switch=table]"), data.tables.map((name, i) => [i, name]), () => state.table, (value) => { state.table = value; });
    const place = document.getElementById("charts");
    const focus = document.activeElement && document.activeElement.dataset.value;
    plots.forEach(({ figure }) => figure.destroy());
    plots = [];
    const first = document.getElementById("first") || place; // the picture of a run stands above its tables
    first.replaceChildren();
    place.replaceChildren();
    place.hidden = !rows().some((row) => row.train.step || row.validation.step);
    if (place.hidden) return;

    const which = make("div", "switch"), axis = make("div", "switch");
    // The page of a portfolio draws the score elsewhere.
    const names = [...new Set([metric, "validation/loss"])].filter((name) => rows().some((row) => row.validation[name]))
      .map((name) => [name, `${data.held_out} ${name.slice("validation/".length)}`]);
    const losses = new Set(rows().flatMap((row) => Object.keys(row.train).filter((name) => name.startsWith("loss/"))));
    losses.forEach((name) => {
      const kind = name.slice("loss/".length), own = kind.startsWith("auxiliary/");
      const words = own ? `${kind.slice("auxiliary/".length)} loss` : kind === "training" ? "training loss" : `${kind} training loss`;
      names.push([name, words]);
    });
    if (!names.some(([name]) => name === state.curve)) state.curve = names[0][0];
    switcher(which, names, () => state.curve, (value) => { state.curve = value; });
    switcher(axis, [["step", "by step"], ["seconds", "by second"]], () => state.x, (value) => { state.x = value; });
    const what = names.find(([name]) => name === state.curve)[1];
    const bands = rows().some((row) => row.validation[`${metric}/low`]) ? " Means over seeds; bands from the lowest to the highest seed." : "";
    const curves = section("Learning curves", `${what[0].toUpperCase()}${what.slice(1)} by ${state.x.replace("seconds", "second")}.${bands}`);
    controls(curves, which, axis);
    first.append(curves);
    learning(curves);

    const list = guided();
    if (list.length) {
      // The row of the decision, or the one with the most to show.
      if (!list.some((row) => row.label === state.row)) state.row = list.reduce((best, row) => (row.train.step.length > best.train.step.length ? row : best)).label;
      const row = list.find((one) => one.label === state.row);
      const parts = section("The three parts of the auxiliary gradient", "Shares of its squared norm. Gradients are compared along a few directions that come from primary examples: along them a part is helpful or harmful; the rest is neutral.");
      if (list.length > 1) controls(parts, chooseRow(list));
      place.append(parts);
      stacked(parts, row);
      weights(place, row);
      const pair = make("div", "pair");
      place.append(pair);
      const captured = section("Captured norm", "Share of each gradient's squared norm that lies along these directions.");
      pair.append(captured);
      lines(captured, row, [["attittud/captured_primary", "primary", "c1"], ["attittud/captured_auxiliary", "auxiliary", "c2"]], { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.05] });
      const rank = section("Effective rank", "Number of these directions that are in use.");
      pair.append(rank);
      lines(rank, row, [["attittud/effective_rank", "directions", "c2"]], { range: (_, low, high) => [0, high + 1] });
      if (row.layers) {
        const layers = section("Layer by layer", `${row.label}: share of one part in each layer's auxiliary gradient, measured at evaluations.`);
        const part = make("div", "switch");
        switcher(part, PARTS.map((name) => [name, name]), () => state.part, (value) => { state.part = value; });
        controls(layers, part);
        place.append(layers);
        heat(layers, row);
      }
    }
    // The pressed button was replaced by its successor.
    if (focus !== undefined) document.querySelector(`button[data-value="${CSS.escape(focus)}"]`)?.focus();
  }

  const fit = () => plots.forEach(({ figure, holder }) => {
    if (holder.clientWidth && holder.clientWidth !== figure.width) figure.setSize({ width: holder.clientWidth, height: 260 });
  });
  document.documentElement.classList.add("js");
  addEventListener("resize", fit);
  // A page in dark colours is printed in light ones.
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", update);
  update();
  fit();
})();
