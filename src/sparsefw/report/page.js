// Draws the figures of a report from the data in the page, and lets its controls change them. Nothing is fetched.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const views = []; // one per figure: how to draw it again when the theme or the width changes
  root.classList.add("js");

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const hue = (index, strength = 1) => {
    const hex = colour(`line-${index}`);
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${parts.join(",")},${strength})`;
  };
  // Plotly reads a little HTML in its texts; what comes from runs is text.
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity); // Math.min(...values) ends at 100,000 of them
  const percent = (value) => `${Number(value.toPrecision(4))} %`;
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // ---- axes -------------------------------------------------------------------------------------------------------

  // On a logarithmic axis of ratios, what counts is what is left: 98 % and 99 % are as far apart as 96 % and 98 %.
  const place = (axis, log) => (x) => (log && axis.unit === "%" ? -Math.log10(Math.max(1 - x / 100, 1e-4)) : x);

  function labelled(values, places, span, pixels) {
    // The values whose labels fit: the first and the last first, then from the last on.
    const far = (i, j) => Math.abs(places[i] - places[j]) / span * pixels >= 46;
    const last = values.length - 1;
    const found = last > 0 && far(0, last) ? [0, last] : [last];
    for (let i = last - 1; i > 0; i--) if (found.every((j) => far(i, j))) found.push(i);
    return found.sort((a, b) => a - b);
  }

  function xAxis(figure, axis, log, width) {
    const at = place(axis, log);
    const all = figure.lines.flatMap((line) => line.x[axis.key]).filter((x) => x !== null && (!log || axis.unit === "%" || x > 0));
    const places = all.map(at);
    const low = least(places), high = -least(places.map((x) => -x));
    const common = { title: { text: safe(axis.label), standoff: 8 }, showgrid: false, zeroline: false, linecolor: colour("muted"),
      tickcolor: colour("muted"), tickfont: { color: colour("muted") }, ticks: "outside", ticklen: 4, automargin: true };
    if (axis.at.length) {
      const span = high - low || 1;
      const shown = labelled(axis.at, axis.at.map(at), span * 1.05, width);
      return { ...common, range: [low - 0.03 * span, high + 0.02 * span], tickmode: "array", tickangle: 0,
        tickvals: shown.map((i) => at(axis.at[i])), ticktext: shown.map((i) => percent(axis.at[i])) };
    }
    const reversed = (range) => (axis.reverse ? range.reverse() : range);
    const few = Math.max(3, Math.min(8, Math.floor(width / 70)));
    if (log) return { ...common, type: "log", range: reversed([Math.log10(low / 1.12), Math.log10(high * 1.12)]), tickformat: "~s", nticks: few, tickangle: 0 };
    const span = high - low || 1;
    return { ...common, range: reversed([low - 0.03 * span, high + 0.03 * span]), tickformat: axis.unit === "count" ? "~s" : "",
      ticksuffix: axis.unit === "%" ? " %" : "", nticks: few, tickangle: 0, ...(axis.key === "epoch" && span < few ? { tick0: 0, dtick: 1 } : {}) };
  }

  function yAxis(figure) {
    const common = { gridcolor: colour("grid"), zeroline: false, tickfont: { color: colour("muted") }, automargin: true };
    if (figure.y.scale === "share") return { ...common, ticksuffix: " %", range: [0, 101], dtick: 25 };
    return figure.y.scale === "log"
      ? { ...common, type: "log", exponentformat: "power", dtick: 1, range: [-6.1, 0.1] }
      : { ...common, ticksuffix: " %", rangemode: least(figure.lines.flatMap((line) => line.y)) < 25 ? "tozero" : "normal" };
  }

  function layout(figure, x, y, height) {
    return { xaxis: x, yaxis: y, height, showlegend: false, hovermode: "closest", dragmode: "zoom",
      margin: { l: 52, r: 14, t: 34, b: 44 }, annotations: [{ text: safe(figure.y.label ?? ""), xref: "paper", yref: "paper", x: 0, y: 1,
        xanchor: "left", yanchor: "bottom", xshift: -46, yshift: 10, showarrow: false }], paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("muted"), font: { color: colour("ink") }, align: "left" } };
  }

  const config = { responsive: false, displaylogo: false, displayModeBar: false };

  // ---- charts of lines --------------------------------------------------------------------------------------------

  function told(figure, line, axis, i) {
    const x = line.x[axis.key][i], value = line.y[i];
    const over = axis.unit === "%" ? percent(x) : Number(x.toPrecision(5)).toLocaleString("en");
    const shown = figure.y.scale === "log" ? value.toPrecision(3) : `${value.toFixed(2)} %`;
    const seeds = line.low && line.seeds[i] > 1 ? `<br>${line.low[i].toFixed(2)} to ${line.high[i].toFixed(2)} over ${line.seeds[i]} seeds` : "";
    return `<b>${safe(figure.methods[line.method].label)}</b> ${safe(line.part)}<br>${safe(axis.label)}: ${over}<br>${shown}${seeds}`;
  }

  // Where lines have no markers of their own, a few tell apart those that share a colour.
  const pointed = (figure, look) => figure.marked || look.marker !== "circle";

  function traces(figure, axis, log, visible) {
    const at = place(axis, log), bands = [], lines = [];
    for (const line of figure.lines.filter(visible)) {
      const look = figure.methods[line.method];
      const x = line.x[axis.key].map((value) => (value === null ? null : at(value)));
      const known = x.map((_, i) => i).filter((i) => x[i] !== null && line.y[i] !== null);
      if (line.low) {
        const back = [...known].reverse();
        bands.push({ x: [...known, ...back].map((i) => x[i]), y: [...known.map((i) => line.low[i]), ...back.map((i) => line.high[i])],
          mode: "lines", fill: "toself", fillcolor: hue(look.colour, 0.16), line: { width: 0 }, hoverinfo: "skip", name: `${line.method} band` });
      }
      lines.push({ x, y: line.y, name: `${line.method} ${line.part}`, mode: pointed(figure, look) ? "lines+markers" : "lines",
        line: { color: hue(look.colour), width: line.solid ? 2.6 : 1.7, dash: line.solid ? "solid" : look.dash },
        marker: { symbol: look.marker + (line.solid ? "" : "-open"), size: 8, maxdisplayed: figure.marked ? 0 : 6, color: hue(look.colour), line: { width: 1.5, color: hue(look.colour) } },
        text: x.map((_, i) => (known.includes(i) ? told(figure, line, axis, i) : "")), hovertemplate: "%{text}<extra></extra>" });
    }
    return [...bands, ...lines];
  }

  // The dense networks as thin lines, and the ratio that the slider is at as a dotted one.
  function shapes(figure, axis, log, visible, ratio) {
    const levels = figure.lines.filter((line) => visible(line) && line.level !== undefined).map((line) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: line.level, y1: line.level, layer: "below",
      line: { width: 1, color: hue(figure.methods[line.method].colour, 0.45) } }));
    const x = ratio === undefined || axis.key !== "ratio" ? null : place(axis, log)(ratio);
    return x === null ? levels : [...levels, { type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, layer: "below",
      line: { width: 1.5, dash: "dot", color: colour("muted") } }];
  }

  // Where every curve is at the slider's ratio.
  function markers(figure, axis, log, visible, ratio) {
    const found = { x: [], y: [], name: "marker", mode: "markers", hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 16, color: [], line: { width: 3 } } };
    for (const line of figure.lines.filter(visible)) {
      const i = line.x.ratio.findIndex((x) => x !== null && Math.abs(x - ratio) < 1e-6);
      if (i < 0 || line.y[i] === null || line.x[axis.key][i] === null) continue;
      found.x.push(place(axis, log)(line.x[axis.key][i]));
      found.y.push(line.y[i]);
      found.marker.color.push(hue(figure.methods[line.method].colour));
    }
    return found;
  }

  // ---- heat maps --------------------------------------------------------------------------------------------------

  function drawMap(element, figure) {
    const few = figure.x.length <= 10 && figure.y.length <= 10;
    const text = figure.map.map((row) => row.map((value) => (value === null ? "" : value.toFixed(1))));
    const axis = (label) => ({ title: { text: safe(label) }, type: "category", tickfont: { color: colour("muted") }, automargin: true, showgrid: false });
    const told = `${safe(figure.xLabel)} = %{x}<br>${safe(figure.yLabel)} = %{y}<br><b>%{z:.2f} %</b> ${safe(figure.valueLabel)}<extra></extra>`;
    const trace = { type: "heatmap", z: figure.map, x: figure.x.map(safe), y: figure.y.map(safe), colorscale: "Cividis", xgap: 2, ygap: 2,
      hovertemplate: told, hoverongaps: false, colorbar: { thickness: 10, outlinewidth: 0, ticksuffix: " %", tickfont: { color: colour("muted") } },
      ...(few ? { text, texttemplate: "%{text}" } : {}) };
    const look = layout({ y: {} }, axis(figure.xLabel), axis(figure.yLabel), Math.max(300, 120 + 34 * figure.y.length));
    look.width = element.clientWidth || 400;
    look.margin.t = 10;
    Plotly.react(element, [trace], look, config);
  }

  // ---- a figure with its controls ---------------------------------------------------------------------------------

  function view(element) {
    const figures = element.dataset.figures.split(" ").map((name) => data.figures[name]);
    const explorer = element.closest(".explorer");
    const state = { chosen: 0, hidden: new Set(), axis: undefined, log: undefined, parts: undefined, ratio: undefined };
    const chips = make("fieldset", { class: "methods" });
    element.after(chips, buttons(element));

    function draw() {
      const figure = figures[state.chosen];
      if (figure.map) return drawMap(element, figure);
      const axis = figure.axes.find((one) => one.key === state.axis) ?? figure.axes[0];
      const log = state.log ?? axis.scale !== "linear";
      const visible = (line) => !state.hidden.has(line.method) && (!state.parts || state.parts.includes(line.part));
      const width = element.clientWidth || 600;
      const drawn = traces(figure, axis, log, visible);
      if (state.ratio !== undefined) drawn.push(markers(figure, axis, log, visible, state.ratio));
      const look = layout(figure, xAxis(figure, axis, log, width - 70), yAxis(figure), width < 500 ? 320 : explorer ? 430 : 360);
      look.shapes = shapes(figure, axis, log, visible, state.ratio);
      look.width = width;
      Plotly.react(element, drawn, look, config);
    }

    function legend() {
      const methods = Object.entries(figures[state.chosen].methods ?? {});
      chips.replaceChildren(make("legend", {}, "Methods"));
      chips.hidden = !methods.length;
      for (const [method, look] of methods) {
        const box = make("input", { type: "checkbox" });
        box.checked = !state.hidden.has(method);
        box.addEventListener("change", () => {
          if (box.checked) state.hidden.delete(method); else state.hidden.add(method);
          own.toggled();
        });
        chips.append(make("label", {}, box, swatch(look, pointed(figures[state.chosen], look)), ` ${look.label}`));
      }
      if (methods.length < 3) return;
      for (const [name, on] of [["all", true], ["none", false]]) {
        const button = make("button", { type: "button" }, name);
        button.addEventListener("click", () => {
          state.hidden = new Set(on ? [] : methods.map(([method]) => method));
          legend();
          own.toggled();
        });
        chips.append(button);
      }
    }

    const own = { element, state, draw, figures, toggled: draw, choose(index) { state.chosen = Math.min(index, figures.length - 1); legend(); draw(); } };
    legend();
    views.push(own);
    return own;
  }

  function swatch(look, marked) {
    const shapes = { circle: "M12 2a4 4 0 1 0 .01 0z", square: "M8 2h8v8H8z", diamond: "M12 1l5 5-5 5-5-5z", "triangle-up": "M12 1l5 9H7z", "triangle-down": "M12 11l5-9H7z" };
    const dashes = { dash: "5 3", dot: "2 2", dashdot: "5 2 1 2", longdash: "7 2", longdashdot: "7 2 1 2" };
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 24 12");
    svg.setAttribute("aria-hidden", "true");
    svg.style.color = `var(--line-${look.colour})`;
    const line = document.createElementNS(space, "path");
    line.setAttribute("d", "M0 6h24");
    line.setAttribute("stroke-dasharray", marked && look.dash !== "dash" ? dashes[look.dash] : "none");
    svg.append(line);
    if (marked) {
      const marker = document.createElementNS(space, "path");
      marker.setAttribute("d", shapes[look.marker]);
      marker.setAttribute("fill", "currentColor");
      svg.append(marker);
    }
    return svg;
  }

  function buttons(element) {
    const bar = make("p", { class: "save" });
    const name = (element.getAttribute("aria-label") || "figure").toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60);
    for (const format of ["png", "svg"]) {
      const button = make("button", { type: "button" }, format.toUpperCase());
      button.addEventListener("click", () => Plotly.downloadImage(element, { format, filename: name, scale: format === "png" ? 2 : 1 }));
      bar.append(button);
    }
    const reset = make("button", { type: "button" }, "Reset zoom");
    reset.addEventListener("click", () => { Plotly.purge(element); views.find((one) => one.element === element).draw(); });
    bar.append(reset);
    return bar;
  }

  // ---- "how small?" -----------------------------------------------------------------------------------------------

  function explore(explorer, own) {
    const found = data.explorers[explorer.dataset.explorer];
    const figure = own.figures[0];
    const [axis, scale, part] = ["axis", "scale", "part"].map((name) => explorer.querySelector(`select.${name}`));
    const slider = explorer.querySelector("input[type=range]");
    const output = explorer.querySelector("output");
    const body = explorer.querySelector("table.sizes tbody");

    function rows(index) {
      body.replaceChildren(...found.rows[index].map((cells, i) => {
        const dot = make("span", { class: "dot", style: `background: var(--line-${figure.methods[found.methods[i]].colour})` });
        const line = make("tr", {}, make("th", { scope: "row" }, dot, cells[0]));
        line.hidden = own.state.hidden.has(found.methods[i]);
        for (const cell of cells.slice(1, -1)) line.append(make("td", {}, cell));
        const command = cells[cells.length - 1];
        line.append(make("td", { class: "command" }, ...(command ? [copyButton(command, cells[0]), make("code", {}, command)] : [])));
        return line;
      }));
    }
    function slide() {
      const index = Number(slider.value);
      own.state.ratio = found.ratios[index];
      output.textContent = found.spoken[index];
      slider.setAttribute("aria-valuetext", found.spoken[index]);
      rows(index);
      own.draw();
    }
    slider.addEventListener("input", slide);
    own.toggled = slide;
    axis.addEventListener("change", () => {
      own.state.axis = axis.value;
      own.state.log = undefined;
      scale.value = figure.axes.find((one) => one.key === axis.value).scale === "linear" ? "linear" : "log";
      own.draw();
    });
    scale.addEventListener("change", () => { own.state.log = scale.value === "log"; own.draw(); });
    part.addEventListener("change", () => { own.state.parts = part.value.split(" "); own.draw(); });
    // What a browser kept from before a reload is taken over.
    own.state.axis = axis.value;
    own.state.log = scale.value === "log";
    own.state.parts = part.value.split(" ");
    slide();
  }

  function copyButton(text, about) {
    const button = make("button", { type: "button", class: "copy", "aria-label": `Copy the command for ${about}` }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch { // not allowed for a file, in some browsers
        const field = make("textarea", { class: "aside" });
        field.value = text;
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
        button.focus();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    return button;
  }

  // ---- tables -----------------------------------------------------------------------------------------------------

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const text = (row) => row.cells[column].textContent;
        const key = (row) => parseFloat(text(row).replace(/,/g, ""));
        const order = (a, b) => {
          const [left, right] = [key(a), key(b)];
          return Number.isNaN(left) || Number.isNaN(right) ? text(a).localeCompare(text(b), "en", { numeric: true }) : left - right;
        };
        body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
      });
    });
    const filter = table.closest(".table").querySelector("input.filter");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
  }

  // ---- the page ---------------------------------------------------------------------------------------------------

  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const drawAll = () => views.forEach((one) => one.draw());
  const theme = document.getElementById("theme");
  const named = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; named(); drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { named(); drawAll(); });
  named();

  for (const element of document.querySelectorAll(".plot")) {
    const own = view(element);
    const explorer = element.closest(".explorer");
    if (explorer) explore(explorer, own); else own.draw();
  }
  for (const control of document.querySelectorAll(".chooser")) {
    const inside = views.filter((one) => control.closest("section").contains(one.element));
    const choose = () => inside.forEach((one) => one.choose(control.type === "checkbox" ? Number(control.checked) : control.selectedIndex));
    control.addEventListener("change", choose);
    choose();
  }
  document.querySelectorAll("table.sortable").forEach(sortable);

  let waiting = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // phones resize when their address bar goes
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
})();
