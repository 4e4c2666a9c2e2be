"use strict";
// Draws the plots of the page: again for another axis, another colour scheme, and paper.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
  const light = { ink: "#1b2230", soft: "#5a6472", grid: "#e8ebf0", line: "#c4cad3", paper: "#ffffff" };
  const night = { ink: "#e6eaf1", soft: "#9aa5b5", grid: "#283040", line: "#46536a", paper: "#1a1f29" };
  const family = getComputedStyle(document.body).fontFamily;
  let onTime = false;
  let onPaper = false;

  const axis = (given, colours, more = {}) => ({
    ...given, ...more, gridcolor: colours.grid, linecolor: colours.line, tickcolor: colours.line, zerolinecolor: colours.line,
    title: { ...given.title, ...more.title, font: { color: colours.soft, size: onPaper ? 10 : 13 } },
  });

  const draw = (plot) => {
    const colours = dark.matches && !onPaper ? night : light;
    const { data, layout } = plot.figure;
    const timed = onTime && plot.times !== null;
    const lines = timed ? data.map((line, i) => ({ ...line, x: plot.times[i] })) : data;
    const along = timed ? { title: { ...layout.xaxis.title, text: `run time, ${plot.time_unit}` }, hoverformat: ",.4~g" } : {};
    return Plotly.react(plot.key, lines, {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colours.ink, size: onPaper ? 10 : 13, family },
      ...(onPaper ? { width: 320, height: 220 } : {}), autosize: !onPaper,
      modebar: { ...layout.modebar, bgcolor: "rgba(0,0,0,0)", color: colours.line, activecolor: colours.soft },
      hoverlabel: { bgcolor: colours.paper, bordercolor: colours.line, font: { color: colours.ink } },
      xaxis: axis(layout.xaxis, colours, along), yaxis: axis(layout.yaxis, colours),
    }, config);
  };
  const drawAll = () => Promise.all(plots.map(draw)).then(() => { document.body.dataset.drawn = onTime ? "time" : "frames"; });

  drawAll();
  dark.addEventListener("change", drawAll);
  const print = (begins) => { onPaper = begins; drawAll(); };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  const buttons = document.querySelectorAll(".switch button");
  buttons.forEach((button) => button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    onTime = button.dataset.axis === "time";
    drawAll();
  }));
})();
