"use strict";
(() => {
  const SHOWN = 60;  // rows that are drawn at once
  const WIDE = 30;  // times the least from which on amounts go by powers
  const LABELLED = 14;  // marks that have their names beside them
  const $ = id => document.getElementById(id);
  let data = JSON.parse($("data").textContent), all = false, sort = { key: "a_auc", down: true }, opened = null, views = {};
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // -- words and numbers
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value; else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter(each => each !== null && each !== undefined));
    return made;
  }
  const percent = value => value === null || value === undefined ? "–" : (100 * value).toFixed(2).replace("-", "−");
  const asPrinted = (mean, sd) => mean.toFixed(2) + (sd === null ? "" : " ± " + sd.toFixed(2));
  function amount(value, unit) {
    if (value === null || value === undefined) return "–";
    for (const [prefix, size] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
      if (value >= size) return `${(value / size).toPrecision(4)} ${prefix}${unit}`;
    return `${value} ${unit}`;
  }
  const allowed = row => row.budget.replace(/\d{4,}(?=B$)/, digits => { const [number, unit] = amount(Number(digits), "").split(" "); return `${Number(number)} ${unit}`; });
  const chance = p => p < 0.0001 ? "below 0.0001" : p.toPrecision(2);
  const runsOf = row => row.runs.map(place => data.runs[place]);
  const values = (row, key) => runsOf(row).map(run => run[key]).filter(value => value !== null && value !== undefined);
  function average(row, key) {  // computed once
    if (!(key in row.means)) { const found = values(row, key); row.means[key] = found.length ? Statistics.mean(found) : null; }
    return row.means[key];
  }
  function spread(row, key) {
    const found = values(row, key), sd = Statistics.deviation(found);
    return found.length ? percent(Statistics.mean(found)) + (sd === null ? "" : " ± " + (100 * sd).toFixed(2)) : "–";
  }

  // -- columns
  const COLUMNS = [
    { key: "experiment", name: "Experiment", text: true, goes: true, value: row => row.experiment || "–" },
    { key: "label", name: "Row", text: true, value: row => row.label, extra: "label" },
    { key: "dataset", name: "Data set", text: true, goes: true, value: row => row.dataset },
    { key: "stream", name: "Stream", text: true, goes: true, value: row => row.stream },
    { key: "budget", name: "Budget", text: true, goes: true, value: row => row.budget, show: allowed, whole: row => row.budget, extra: "lines" },
    { key: "seeds", name: "Seeds", goes: true, value: row => row.runs.length, show: row => runsOf(row).map(run => run.seed + (run.machines > 1 ? "†" : "")).join(", ") },
    { key: "a_auc", name: "A_AUC %", value: row => average(row, "a_auc"), show: row => spread(row, "a_auc"), opens: true },
    { key: "a_last", name: "A_last %", value: row => average(row, "a_last"), show: row => spread(row, "a_last"), opens: true },
    { key: "f_last", name: "F_last %", value: row => average(row, "f_last"), show: row => spread(row, "f_last") },
    { key: "real", name: "Compute", value: row => average(row, "real"), show: row => amount(average(row, "real"), "FLOP") },
    { key: "bytes", name: "Bytes", value: row => average(row, "bytes"), show: row => amount(average(row, "bytes"), "B") },
    { key: "frozen", name: "Frozen %", goes: true, value: row => average(row, "frozen"), show: row => (100 * average(row, "frozen")).toFixed(1) + (row.rests ? " ‡" : "") },
    { key: "printed", name: "Paper A_AUC %", goes: true, value: row => row.printed ? row.printed.a_auc : null, show: row => row.printed ? asPrinted(row.printed.a_auc, row.printed.a_auc_sd) : "–" },
  ];
  const column = key => COLUMNS.find(each => each.key === key);
  const told = (row, each) => each.show ? each.show(row) : String(each.value(row));

  // -- filters
  const FILTERS = { experiment: "f-experiment", dataset: "f-dataset", stream: "f-stream", method: "f-method", budget: "f-budget" };
  function fillFilters() {
    for (const [key, id] of Object.entries(FILTERS)) {
      const select = $(id), chosen = select.value, found = [...new Set(data.rows.map(row => row[key]))].sort();
      select.replaceChildren(element("option", { value: "" }, "all"), ...found.map(each => element("option", { value: each, title: each }, key === "budget" ? shortest(each, found) : each || "(none)")));
      select.value = found.includes(chosen) ? chosen : "";
      select.parentElement.hidden = found.length < 2;
    }
  }
  function shortest(budget, budgets) {  // unless two would read the same
    const short = allowed({ budget });
    return budgets.filter(each => allowed({ budget: each }) === short).length > 1 ? budget : short;
  }
  function chosenRows() {
    const wanted = Object.entries(FILTERS).map(([key, id]) => [key, $(id).value]).filter(([, value]) => value);
    const words = $("f-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    return data.rows.filter(row => wanted.every(([key, value]) => row[key] === value) && words.every(word => row.words.includes(word)));
  }
  function sorted(rows) {
    const by = column(sort.key), way = sort.down ? -1 : 1;
    return [...rows].sort((one, two) => {
      const a = by.value(one), b = by.value(two);
      if (a === null || b === null) return (a === null) - (b === null);  // what is not there comes last, either way
      return way * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
  }

  // -- the table
  function drawHead() {
    $("rows").tHead.replaceChildren(element("tr", {}, ...COLUMNS.map(each => element("th",
      { scope: "col", "data-key": each.key, class: each.text ? "text" : "", "aria-sort": sort.key === each.key ? (sort.down ? "descending" : "ascending") : "none" },
      element("button", { type: "button", onclick: () => { sort = { key: each.key, down: sort.key === each.key ? !sort.down : !each.text }; show(); } }, each.name)))));
  }
  function cell(row, each) {
    const shown = told(row, each);
    const classes = [each.text ? "text" : "", each.extra || "", shown === "–" ? "empty" : ""].join(" ").trim();
    const made = document.createElement("td");
    made.className = classes; made.dataset.label = each.name; made.dataset.key = each.key;
    if (each.whole) made.title = each.whole(row);
    if (each.opens) {
      const button = document.createElement("button");
      button.type = "button"; button.className = row.marks[each.key] || ""; button.textContent = shown; button.dataset.row = row.id;
      button.setAttribute("aria-label", `${each.name} of ${row.label}: ${shown}; show its runs`);
      made.append(button);
    } else if (each.extra === "lines") {
      made.append(element("span", {}, ...shown.split(/(?<=,) /).flatMap(part => [element("span", { class: "line" }, part), " "])));
    } else {
      made.textContent = shown;
      if (each.key === "label" && row.running) made.append(element("span", { class: "running" }, ` running, ${row.running}`));
    }
    return made;
  }
  function dropColumns(rows) {  // what is the same in all rows is said once
    const alike = rows.length < 2 ? [] : COLUMNS.filter(each => each.goes && rows.every(row => told(row, each) === told(rows[0], each)));
    $("rows").className = alike.map(each => `no-${each.key}`).join(" ");
    const said = alike.filter(each => told(rows[0], each) !== "–").map(each => `${each.name.replace(" %", "")} ${told(rows[0], each)}${each.name.endsWith("%") ? " %" : ""}`);
    $("same").textContent = said.length ? `In all of these rows: ${said.join("; ")}.` : "";
    $("same").hidden = !said.length;
  }
  function drawRows(rows) {
    const drawn = all ? rows : rows.slice(0, SHOWN);
    drawHead();
    dropColumns(rows);
    const body = document.createDocumentFragment();
    for (const row of drawn) {
      if (!row.line) {  // made once, and put where it belongs from then on
        row.line = document.createElement("tr");
        for (const each of COLUMNS) row.line.append(cell(row, each));
      }
      body.append(row.line);
    }
    $("rows").tBodies[0].replaceChildren(body);
    const resting = new Map(drawn.filter(row => row.rests).map(row => [row.method, row.rests]));
    $("rests").hidden = !resting.size;
    $("rests").textContent = `‡: rests by design, which Frozen does not count and Compute does: ${[...resting].map(([method, what]) => `${what} (${method})`).join("; ")}.`;
    $("more").hidden = drawn.length === rows.length;
    $("more").textContent = `Show all ${rows.length} rows`;
  }
  function show() {
    const found = chosenRows(), rows = sorted(found);
    drawRows(rows);
    const runs = rows.reduce((sum, row) => sum + row.runs.length, 0);
    $("count").textContent = `${rows.length} of ${data.rows.length} rows, ${runs} of ${data.runs.length} runs`;
    remember();
    drawChart(rows);
    if (fillCompare(found)) compare();
  }

  // -- charts: by Vega-Lite, which is evaluated after the table is there
  const look = () => ({
    background: null, font: "system-ui, DejaVu Sans, sans-serif",
    axis: { labelColor: colour("--ink"), titleColor: colour("--ink"), gridColor: colour("--line"), domainColor: colour("--soft"), tickColor: colour("--soft"), labelFontSize: 12, titleFontSize: 12 },
    view: { stroke: null }, legend: { labelColor: colour("--ink"), titleColor: colour("--ink") }, text: { color: colour("--ink") },
  });
  let vega = null;
  function whenVega() {
    vega ||= new Promise(done => requestAnimationFrame(() => setTimeout(() => {
      const script = document.createElement("script");
      script.textContent = $("vega").textContent;
      document.head.append(script);
      done(window.vegaEmbed);
    })));
    return vega;
  }
  const turns = {};
  async function draw(id, spec, ready = () => {}) {
    const description = $(id).getAttribute("aria-label"), turn = turns[id] = (turns[id] || 0) + 1, embed = await whenVega();
    await new Promise(painted => requestAnimationFrame(() => setTimeout(painted)));  // what was asked for is shown first
    if (!embed || turn !== turns[id] || !$(id)) return;
    const result = await embed($(id), { ...spec, description, config: look() }, { actions: false, renderer: "svg", tooltip: { theme: dark() ? "dark" : "light" } });
    if (views[id]) views[id].finalize();
    views[id] = result.view;
    $(id).setAttribute("aria-label", description);
    ready(result.view);
    document.dispatchEvent(new CustomEvent("drawn", { detail: id }));
  }
  const TITLES = { real: "compute executed, FLOP (rule real)", paper: "compute, MAC (rule paper)", bytes: "bytes kept", steps: "training steps", a_auc: "A_AUC, %", a_last: "A_last, %" };
  function drawChart(rows) {
    const x = $("x-axis").value, y = $("y-axis").value;
    const points = rows.map(row => {
      const found = values(row, y).map(value => 100 * value), middle = found.length ? Statistics.mean(found) : null, sd = Statistics.deviation(found) || 0;
      return { id: row.id, name: row.label, x: average(row, x), y: middle, low: middle - sd, high: middle + sd, seeds: row.runs.length, experiment: row.experiment, where: `${row.dataset}, ${row.stream}`, budget: allowed(row) };
    }).filter(point => point.x !== null && point.y !== null);
    const best = points.reduce((one, two) => !one || two.y > one.y ? two : one, null);
    $("chart").setAttribute("aria-label", best ? `${TITLES[y]} against ${TITLES[x]} of ${points.length} rows; the highest is ${best.name} with ${best.y.toFixed(2)} %. The table below has the same numbers.` : "No row to draw.");
    $("chart-note").textContent = points.length ? "Mark: mean over seeds; line: standard deviation. Choose a mark to see its runs." + (points.length > LABELLED ? ` Names are shown for up to ${LABELLED} rows: filter to see them.` : "") : "";
    const tooltip = [["name", "row"], ["y", TITLES[y], ".2f"], ["x", TITLES[x], ".4s"], ["seeds", "seeds"], ["experiment", "experiment"], ["where", "on"], ["budget", "budget"]].map(([field, title, format]) => ({ field, title, format }));
    const ends = points.map(point => point.x), least = Math.min(...ends), most = Math.max(...ends), wide = least > 0 && most > WIDE * least;
    const scale = { nice: false, padding: 20, ...(wide ? { type: "log" } : { zero: false }) };  // nothing costs less than nothing
    const axis = { x: { field: "x", type: "quantitative", title: TITLES[x] + (wide ? ", logarithmic" : ""), scale, axis: { format: "~s", tickCount: 6 } } };
    const layer = [
      { mark: { type: "rule", strokeWidth: 1.2, color: colour("--soft") }, encoding: { ...axis, y: { field: "low", type: "quantitative", title: TITLES[y], scale: { zero: false } }, y2: { field: "high" } } },
      { mark: { type: "point", filled: true, size: 70, opacity: .9, color: colour("--accent"), cursor: "pointer" }, encoding: { ...axis, y: { field: "y", type: "quantitative", title: TITLES[y] }, tooltip } },
    ];
    const middle = wide ? Math.sqrt(least * most) : (least + most) / 2;
    for (const [align, test] of points.length <= LABELLED ? [["left", "<="], ["right", ">"]] : [])  // names lead inwards
      layer.push({ transform: [{ filter: `datum.x ${test} ${middle}` }], mark: { type: "text", align, dx: align === "left" ? 8 : -8, dy: -4, limit: 320 }, encoding: { ...axis, y: { field: "y", type: "quantitative" }, text: { field: "name" } } });
    draw("chart", { data: { values: points }, width: "container", height: 300, autosize: { type: "fit", contains: "padding" }, layer },
      view => view.addEventListener("click", (_, item) => { if (item && item.datum && item.datum.id !== undefined) open(item.datum.id); }));
  }
  function apart(ends, heights, behind) {  // how far names of curves are moved from their ends, in pixels: none covers another
    const least = Math.min(...heights), most = Math.max(...heights), moved = [];
    let above = -Infinity;
    for (const [place, end] of [...ends.entries()].sort((one, two) => two[1] - one[1])) {
      const at = 200 * (most - end) / (most - least || 1);
      above = Math.max(behind ? at : at - 10, above + 15);
      if (!behind && Math.abs(above - at) < 9) above = at + 12;  // not on the curve itself
      moved[place] = above - at;
    }
    return moved;
  }
  function curves(id, rows, bySeed) {
    const points = [];
    for (const [place, row] of rows.entries()) {
      const found = runsOf(row).filter(run => run.curve.length);
      for (const run of found) if (bySeed) run.curve.forEach((value, i) => points.push({ at: data.grids[run.grid][i], accuracy: value / 100, name: `seed ${run.seed}`, place }));
      if (!bySeed && found.length) data.grids[found[0].grid].forEach((at, i) => {
        const there = found.filter(run => run.grid === found[0].grid).map(run => run.curve[i] / 100);
        points.push({ at, accuracy: Statistics.mean(there), low: Math.min(...there), high: Math.max(...there), name: row.label, place });
      });
    }
    if (!points.length) return;
    const names = [...new Set(points.map(point => point.name))];
    const palette = [colour("--accent"), colour("--second"), "#009E73", "#CC79A7", "#8a6fd1", "#7a7a7a"];
    const shared = { x: { field: "at", type: "quantitative", title: "samples of the stream", axis: { tickCount: 8 } }, color: { field: "name", type: "nominal", scale: { domain: names, range: names.map((_, i) => palette[i % palette.length]) }, legend: null } };
    const last = Object.fromEntries(points.map(point => [point.name, point])), moved = apart(names.map(name => last[name].accuracy), points.map(point => point.accuracy), bySeed);
    const ats = points.map(point => point.at), end = Math.max(...ats);  // short names stand behind their curves, long ones above
    if (bySeed) shared.x.scale = { nice: false, domain: [Math.min(...ats), end + .08 * (end - Math.min(...ats) || 1)] };
    const layer = [
      ...(bySeed ? [] : [{ mark: { type: "area", opacity: .2 }, encoding: { ...shared, y: { field: "low", type: "quantitative", title: "accuracy, %" }, y2: { field: "high" } } }]),
      { mark: { type: "line", strokeWidth: 2, point: { size: 14 } }, encoding: { ...shared, strokeDash: { field: "name", type: "nominal", sort: names, legend: null }, y: { field: "accuracy", type: "quantitative", title: "accuracy, %", scale: { zero: false } }, tooltip: [{ field: "name", title: "curve" }, { field: "at", title: "samples" }, { field: "accuracy", title: "accuracy, %", format: ".2f" }] } },
      ...names.map((name, i) => ({ transform: [{ filter: { and: [{ field: "at", equal: last[name].at }, { field: "name", equal: name }] } }], mark: { type: "text", align: bySeed ? "left" : "right", dy: moved[i], dx: bySeed ? 6 : -2, limit: 320, fontWeight: 600 }, encoding: { ...shared, y: { field: "accuracy", type: "quantitative" }, text: { field: "name" } } })),
    ];
    draw(id, { data: { values: points }, width: "container", height: 260, autosize: { type: "fit", contains: "padding" }, layer });
  }

  // -- one row: its runs
  function open(id) {
    const row = data.rows.find(each => each.id === id);
    if (!row) return;
    opened = id;
    $("d-title").textContent = row.label;
    const runs = runsOf(row), body = $("d-body");
    const head = ["seed", "A_AUC %", "A_last %", "F_last %", "steps", "rule paper", "rule real", "bytes", "train s"];
    const lines = runs.map(run => element("tr", {}, ...[run.seed + (run.machines > 1 ? "†" : ""), percent(run.a_auc), percent(run.a_last), percent(run.f_last), run.steps, amount(run.paper, "MAC"), amount(run.real, "FLOP"), amount(run.bytes, "B"), run.seconds === null ? "–" : run.seconds.toFixed(0)].map(text => element("td", {}, String(text)))));
    const shares = (title, pairs, unit) => {
      const whole = pairs.reduce((sum, [, value]) => sum + value, 0);
      return !whole ? null : element("section", {}, element("h3", {}, title), element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...pairs.filter(([, value]) => value).map(([name, value]) => element("tr", {}, element("th", { scope: "row", class: "text" }, name), element("td", {}, amount(value, unit)), element("td", {}, (100 * value / whole).toFixed(2) + " %")))))));
    };
    const config = Object.entries(data.configs[row.config]);
    const commands = runs.map(run => run.command).join("\n");
    const copy = element("button", { type: "button", onclick: async () => { try { await navigator.clipboard.writeText(commands); copy.textContent = "Copied"; } catch { const range = document.createRange(); range.selectNodeContents($("d-commands")); getSelection().removeAllRanges(); getSelection().addRange(range); copy.textContent = "Selected: copy with the keyboard"; } } }, "Copy");
    body.replaceChildren(...[
      element("p", {}, `${row.dataset}, ${row.stream} stream, ${row.model}; ${row.budget}.` + (row.printed ? ` The paper prints A_AUC ${asPrinted(row.printed.a_auc, row.printed.a_auc_sd)} and A_last ${asPrinted(row.printed.a_last, row.printed.a_last_sd)} (${row.printed.source}${row.printed.same_size ? "" : ", at another size"}).` : "")),
      element("div", { id: "d-chart", class: "chart", role: "img", "aria-label": `Accuracy over the stream of ${row.label}, a line for each seed; A_AUC ${spread(row, "a_auc")} %.` }),
      element("h3", {}, "Runs"),
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...head.map(name => element("th", { scope: "col", class: "plain" }, name)))), element("tbody", {}, ...lines))),
      runs.some(run => run.machines > 1) ? element("p", { class: "small" }, "†: went on on another machine, so its bits are not those of one arithmetic") : null,
      shares("Ledger: where the compute went (rule real, first seed)", Object.entries(runs[0].spent_on), "FLOP"),
      shares("Where the bytes went (first seed)", Object.entries(runs[0].bytes_by_item), "B"),
      element("h3", {}, "Configuration"),
      element("dl", {}, ...config.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))])),
      element("h3", {}, "The command that repeats ", runs.length > 1 ? "each of them" : "it"), element("pre", { id: "d-commands", tabindex: "0" }, commands), copy,
      element("h3", {}, "Folders"), element("ul", {}, ...runs.map(run => element("li", {}, run.path))),
    ].filter(Boolean));
    if (!$("details").open) $("details").showModal();
    $("d-title").focus();
    remember();
    curves("d-chart", [row], true);
  }

  // -- two rows
  let offered = [];
  function fillCompare(rows) {  // from the rows that are shown; is another pair chosen than before?
    const named = row => `${row.experiment ? row.experiment + ": " : ""}${row.label} (${row.dataset}, ${row.stream})`;
    const before = ["c-one", "c-other"].map(id => $(id).value), ids = rows.map(row => String(row.id));
    const [one, other] = before.map(id => ids.includes(id) ? id : null);
    const first = one ?? ids.find(id => id !== other) ?? ids[0] ?? "", second = other ?? ids.find(id => id !== first) ?? first;
    if (rows.length !== offered.length || rows.some((row, i) => row !== offered[i]))
      for (const [place, id] of ["c-one", "c-other"].entries()) {
        for (const row of rows) row.options ||= [0, 1].map(() => element("option", { value: row.id }, named(row)));  // made once
        $(id).replaceChildren(...rows.map(row => row.options[place]));
      }
    offered = rows;
    [$("c-one").value, $("c-other").value] = [first, second];
    return first !== before[0] || second !== before[1] || rows.length < 2;
  }
  function sentence(one, other, metric) {
    const seeds = row => new Map(runsOf(row).filter(run => run[metric] !== null).map(run => [run.seed, 100 * run[metric]]));
    const first = seeds(one), second = seeds(other), both = [...first.keys()].filter(seed => second.has(seed)).sort((a, b) => a - b), name = TITLES[metric].replace(", %", "");
    if (one.id === other.id) return offered.length > 1 ? "Choose two different rows." : "Only one row is shown: change the filters to compare it with another.";
    const apart = ["dataset", "stream"].filter(key => one[key] !== other[key]);
    const warning = apart.length ? ` Mind that they differ in ${apart.map(key => key === "dataset" ? "data set" : key).join(" and ")} too.` : "";
    if (both.length < 2) return `${one.label} and ${other.label} share ${both.length === 1 ? "one seed" : "no seed"}: with fewer than two pairs no test can tell a difference from chance.${warning}`;
    const test = Statistics.paired(both.map(seed => first.get(seed) - second.get(seed)));
    const size = `${Math.abs(test.difference).toFixed(2)} points of ${name}`, on = `on the ${both.length} seeds that both have`;
    const numbers = `(95 % interval ${signed(test.low)} to ${signed(test.high)}, paired t test, p ${chance(test.p)})`;
    const compute = [one, other].map(row => average(row, "real")), ratio = compute[0] / compute[1];
    const spent = Math.abs(ratio - 1) < .005 ? " Both spent the same compute." : ` It spent ${(100 * Math.abs(ratio - 1)).toFixed(0)} % ${ratio > 1 ? "more" : "less"} compute.`;
    const told = test.p < .05 ? `${one.label} is ${size} ${test.difference > 0 ? "better" : "worse"} than ${other.label} ${on} ${numbers}.`
      : `${one.label} cannot be told from ${other.label} ${on}: the difference is ${signed(test.difference)} points of ${name} ${numbers}, which chance may well have made.`;
    return told + spent + warning;
  }
  const signed = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  function compare() {
    const [one, other] = ["c-one", "c-other"].map(id => data.rows.find(row => String(row.id) === $(id).value));
    if (!one || !other) {
      turns["c-chart"] = (turns["c-chart"] || 0) + 1;  // nothing that is under way is drawn
      $("c-chart").replaceChildren();
      $("sentence").textContent = "No row is shown: change the filters to compare two.";
      return;
    }
    $("sentence").textContent = sentence(one, other, $("c-metric").value);
    $("c-chart").setAttribute("aria-label", `Accuracy over the stream: ${one.label} and ${other.label}. ${$("sentence").textContent}`);
    curves("c-chart", [one, other], false);
    remember();
  }

  // -- the record board
  function drawBoard() {
    $("board").hidden = !data.board.length;
    const head = ["Budget", "A_AUC %", "A_last %", "Method", "Verified", "Date", "Command"];
    $("board-rows").tHead.replaceChildren(element("tr", {}, ...head.map(name => element("th", { scope: "col", class: "plain text" }, name))));
    $("board-rows").tBodies[0].replaceChildren(...data.board.map(entry => element("tr", {}, ...[entry.track, percent(entry.a_auc), percent(entry.a_last), entry.method, entry.verified, entry.date].map(text => element("td", { class: "text" }, text)), element("td", { class: "text" }, element("details", {}, element("summary", { class: "line" }, "show it"), element("code", {}, entry.command))))));
  }

  // -- a view is a link
  const KEPT = [...Object.values(FILTERS), "f-text", "x-axis", "y-axis", "c-one", "c-other", "c-metric"];
  let first = true;
  function remember() {
    if (first) return;
    const words = new URLSearchParams();
    for (const id of KEPT) if ($(id).value) words.set(id, $(id).value);
    words.set("sort", `${sort.key}${sort.down ? "-" : ""}`);
    if (opened !== null) words.set("open", opened);
    try { history.replaceState(null, "", "#" + words); } catch { /* a file that is shown where it may not */ }
  }
  function recall() {
    const words = new URLSearchParams(location.hash.slice(1));
    for (const id of KEPT) if (words.has(id)) $(id).value = words.get(id);
    const by = words.get("sort");
    if (by && column(by.replace(/-$/, ""))) sort = { key: by.replace(/-$/, ""), down: by.endsWith("-") };
    return words.has("open") ? Number(words.get("open")) : null;
  }

  // -- begin
  function take(found) {
    data = found;
    data.rows.forEach((row, id) => { row.id = id; row.means = {}; row.words = [row.experiment, row.label, row.method, row.dataset, row.stream, row.model, row.budget].join(" ").toLowerCase(); });
    $("about").textContent = data.about;
    $("made").textContent = data.made;
    fillFilters(); fillCompare(data.rows); drawBoard();
  }
  take(data);
  const wanted = recall();
  for (const id of [...Object.values(FILTERS), "x-axis", "y-axis"]) $(id).addEventListener("change", show);
  $("f-text").addEventListener("input", show);
  $("clear").addEventListener("click", () => { for (const id of [...Object.values(FILTERS), "f-text"]) $(id).value = ""; show(); });
  $("more").addEventListener("click", () => { all = true; show(); });
  $("rows").addEventListener("click", event => { const button = event.target.closest("button[data-row]"); if (button) open(Number(button.dataset.row)); });
  for (const id of ["c-one", "c-other", "c-metric"]) $(id).addEventListener("change", compare);
  $("d-close").addEventListener("click", () => $("details").close());
  $("details").addEventListener("close", () => { opened = null; remember(); });
  $("details").addEventListener("click", event => { if (event.target === $("details")) $("details").close(); });
  function paint() { $("theme").textContent = dark() ? "Light" : "Dark"; $("theme").setAttribute("aria-pressed", String(dark())); show(); compare(); if (opened !== null) open(opened); }
  $("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; paint(); });
  for (const [moment, whole] of [["beforeprint", true], ["afterprint", false]])  // paper has no button for more
    addEventListener(moment, () => { const was = all; all ||= whole; drawRows(sorted(chosenRows())); all = was; });
  const wider = new ResizeObserver(() => { const frame = $("rows").parentElement; $("wider").hidden = frame.scrollWidth <= frame.clientWidth + 1; });
  wider.observe($("rows")); wider.observe($("rows").parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  first = false;
  if (wanted !== null) open(wanted);

  // -- live: the server that serves the page tells what is new
  if (data.live) {
    let tag = "";
    const ask = async () => {
      try {
        const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {} });
        if (answer.status === 200) { tag = answer.headers.get("ETag") || ""; take(await answer.json()); show(); compare(); }
        $("about").textContent = data.about;
      } catch { $("about").textContent = data.about + " The program that serves this page has ended."; }
      setTimeout(ask, 2000);
    };
    setTimeout(ask, 2000);
  }
})();
