"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
  let printing = false;

  const light = { ink: "#1b2230", soft: "#5a6472", grid: "#e8ebf0", line: "#c4cad3", paper: "#ffffff" };
  const night = { ink: "#e6eaf1", soft: "#9aa5b5", grid: "#283040", line: "#46536a", paper: "#1a1f29" };
  const colours = () => {
    const one = dark.matches && !printing ? night : light;
    const axis = (name) => ({ [`${name}.gridcolor`]: one.grid, [`${name}.linecolor`]: one.line, [`${name}.tickcolor`]: one.line, [`${name}.zerolinecolor`]: one.line, [`${name}.title.font`]: { color: one.soft, size: 13 } });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": one.ink, "font.size": 13,
      "font.family": getComputedStyle(document.body).fontFamily, "hoverlabel.bgcolor": one.paper,
      "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": one.line, "modebar.activecolor": one.soft, "hoverlabel.bordercolor": one.line, "hoverlabel.font.color": one.ink, ...axis("xaxis"), ...axis("yaxis"),
    };
  };
  const recolour = () => plots.forEach((plot) => Plotly.relayout(plot.key, colours()));

  const onAxis = (plot, axis) => {
    if (!plot.times) return;
    const x = axis === "time" ? plot.times : plot.frames;
    const title = axis === "time" ? `training time, ${plot.time_unit}` : plot.frames_title;
    Plotly.update(plot.key, { x }, { "xaxis.title.text": title, "xaxis.autorange": true, "yaxis.autorange": plot.range === null, "xaxis.hoverformat": axis === "time" ? ".1f" : "," });
  };

  for (const plot of plots) {
    plot.frames = plot.figure.data.map((line) => line.x);
    plot.frames_title = plot.figure.layout.xaxis.title.text;
    plot.range = plot.figure.layout.yaxis.range || null;
    Plotly.newPlot(plot.key, plot.figure.data, plot.figure.layout, config);
  }
  recolour();
  dark.addEventListener("change", recolour);
  const print = (begins) => { printing = begins; recolour(); plots.forEach((plot) => Plotly.Plots.resize(plot.key)); };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  const buttons = document.querySelectorAll(".switch button");
  buttons.forEach((button) => button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    plots.forEach((plot) => onAxis(plot, button.dataset.axis));
  }));
})();
