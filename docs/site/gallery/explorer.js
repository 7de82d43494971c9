/* The gallery: cards of all cells, search and filters, equations on demand, two cells side by side.
 * Reads window.CELLGEN (cells.js) and KaTeX. The address keeps what is chosen: #q=gate&compare=lstm,gru. */
"use strict";
(() => {
  const { shape, cells } = window.CELLGEN;
  const by = new Map(cells.map((cell) => [cell.name, cell]));
  const get = (id) => document.getElementById(`cx-${id}`);
  const FILTERS = ["search", "recurrence", "levels", "states", "from", "to", "heads", "order"];
  const MODES = { forward: "forward", "forward+backward": "with gradients" };
  let chosen = [];

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  const count = (number) => number.toLocaleString("en-US");
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

  function typeset(cell) {
    const box = element("div", { className: "cx-equations", tabIndex: 0 });
    katex.render(cell.equations, box, { displayMode: true, throwOnError: false, trust: false });
    return box;
  }

  // --- filters ---------------------------------------------------------------------------------

  function words(cell) {
    const names = [...cell.inputs, ...cell.states, ...cell.parameters].map((value) => value.name);
    return [cell.name, cell.class, cell.text, cell.source, cell.recurrence, ...cell.tags, ...names].join(" ").toLowerCase();
  }

  const haystack = new Map(cells.map((cell) => [cell.name, words(cell)]));

  function fits(cell, wanted) {
    return wanted.search.toLowerCase().split(/\s+/).every((word) => haystack.get(cell.name).includes(word))
      && (!wanted.recurrence || cell.recurrence === wanted.recurrence)
      && (!wanted.levels || cell.levels === Number(wanted.levels))
      && (!wanted.states || cell.states.length === Number(wanted.states))
      && (!wanted.from || (cell.year !== null && cell.year >= Number(wanted.from)))
      && (!wanted.to || (cell.year !== null && cell.year <= Number(wanted.to)))
      && (!wanted.heads || cell.heads === (wanted.heads === "yes"));
  }

  function measured(cell, mode, at = shape, run = null) {
    return cell.speed.findLast((entry) => entry.mode === mode && entry.shape === at && (run ?? entry.run) === entry.run);
  }

  /* The figures of two cells, of one run where both were in one. */
  function measuredBoth(a, b, mode, at) {
    const common = a.speed.findLast((entry) => measured(a, mode, at, entry.run) && measured(b, mode, at, entry.run));
    return [a, b].map((cell) => measured(cell, mode, at, common?.run));
  }

  const ORDERS = {
    name: (cell) => cell.name,
    year: (cell) => cell.year ?? 9999,
    weights: (cell) => cell.weights.number,
    saved: (cell) => cell.saved.number,
    speed: (cell) => measured(cell, "forward+backward")?.ms ?? Infinity,
  };

  function ordered(found, order) {
    const key = ORDERS[order];
    if (!key) return found;
    return [...found].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
  }

  function fill(id, values) {
    get(id).append(...values.map((value) => element("option", { value: String(value) }, String(value))));
  }

  const distinct = (values) => [...new Set(values)].filter((value) => value !== null);
  const ascending = (values) => distinct(values).sort((a, b) => a - b);

  // --- cards -----------------------------------------------------------------------------------

  function speedText(entry) {
    return entry ? `${entry.ms} ms, ${entry.floor.toFixed(2)} of the floor` : "not measured";
  }

  function savedText(cell) {
    const names = cell.saved.names.length ? ` (${cell.saved.names.join(", ")})` : "";
    return cell.saved.number ? `${count(4 * cell.saved.number)} bytes a step and row${names}` : "nothing beside the outputs";
  }

  function facts(cell) {
    const rows = {
      states: cell.states.map((value) => `${value.name} ${value.shape}`).join(", "),
      parameters: `${cell.parameters.length} arrays, ${count(cell.weights.number)} numbers`,
      saved: savedText(cell),
      forward: speedText(measured(cell, "forward")),
      "with gradients": speedText(measured(cell, "forward+backward")),
    };
    return element("dl", { className: "cx-facts" }, ...Object.entries(rows).flatMap(
      ([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  }

  function chips(cell) {
    const texts = [cell.recurrence, plural(cell.levels, "level"), plural(cell.states.length, "state")];
    if (cell.heads) texts.push("heads");
    if (cell.year) texts.push(String(cell.year));
    return element("div", { className: "cx-chips" }, ...texts.map((text) => element("span", { className: "cx-chip" }, text)));
  }

  function thumbnail(cell) {
    const picture = element("img", { src: `${cell.name}.svg`, alt: `one step of ${cell.name}`, loading: "lazy" });
    const button = element("button", { type: "button", className: "cx-thumb", title: "larger" }, picture);
    button.addEventListener("click", () => enlarge(cell));
    return button;
  }

  function enlarge(cell) {
    const dialog = get("picture"), picture = dialog.querySelector("img");
    picture.src = `${cell.name}.svg`;
    picture.alt = `one step of ${cell.name}`;
    dialog.showModal();
  }

  function card(cell) {
    const equations = element("button", { type: "button", className: "cx-button", "aria-expanded": "false" }, "Equations");
    const compare = element("button", { type: "button", className: "cx-button cx-pick", "data-cell": cell.name, "aria-pressed": String(chosen.includes(cell.name)) }, "Compare");
    const made = element("article", { className: "cx-card", "data-cell": cell.name },
      element("h2", {}, element("a", { href: `${cell.name}.html` }, cell.name)),
      element("p", {}, cell.text),
      element("p", { className: "cx-source" }, cell.source),
      thumbnail(cell), chips(cell), facts(cell),
      element("div", { className: "cx-row" }, equations, compare));
    equations.addEventListener("click", () => {
      const shown = made.querySelector(".cx-equations");
      if (shown) shown.remove();
      else made.append(typeset(cell));
      equations.setAttribute("aria-expanded", String(!shown));
    });
    compare.addEventListener("click", () => pick(cell.name));
    return made;
  }

  // --- two cells -------------------------------------------------------------------------------

  function pick(name) {
    chosen = chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name].slice(-2);
    show();
    if (chosen.length === 2) get("compare").scrollIntoView({ block: "start" });
  }

  const number = (figure) => `${count(figure.number)} (${figure.formula})`;
  const list = (values) => values.map((value) => `${value.name} ${value.shape}`).join(", ");

  function comparison([a, b]) {
    const shapes = distinct([shape, ...a.speed.map((entry) => entry.shape), ...b.speed.map((entry) => entry.shape)]);
    const speeds = shapes.flatMap((at) => Object.entries(MODES).map(([mode, text]) => {
      const both = measuredBoth(a, b, mode, at), isFair = both[0]?.run === both[1]?.run;
      const entry = (cell) => both[cell === a ? 0 : 1];
      return {
        label: `${text}, ${at}`,
        isShown: both[0] || both[1] || at === shape,
        text: (cell) => speedText(entry(cell)) + (isFair || !entry(cell) ? "" : ` (${entry(cell).device})`),
        amount: (cell) => (isFair ? entry(cell)?.ms : undefined),
      };
    })).filter((row) => row.isShown);
    const rows = [
      { label: "what it is", text: (cell) => cell.text },
      { label: "source", text: (cell) => cell.source },
      { label: "one step", node: thumbnail },
      { label: "equations", node: typeset },
      { label: "recurrence", text: (cell) => `${cell.recurrence}, ${plural(cell.levels, "level")}` },
      { label: "states", text: (cell) => list(cell.states) },
      { label: "parameters", text: (cell) => number(cell.weights), amount: (cell) => cell.weights.number },
      { label: "multiply-adds a step and row, forward", text: (cell) => number(cell.products.forward), amount: (cell) => cell.products.forward.number },
      { label: "multiply-adds, with gradients", text: (cell) => number(cell.products.both), amount: (cell) => cell.products.both.number },
      { label: "saved beside the outputs (float32)", text: savedText, amount: (cell) => cell.saved.number },
      ...speeds,
    ];
    const grid = element("div", { className: "cx-both" }, element("div", { className: "cx-corner" }),
      ...[a, b].map((cell) => element("div", { className: "cx-name" }, element("a", { href: `${cell.name}.html` }, cell.name))));
    for (const row of rows) {
      const amounts = [a, b].map((cell) => row.amount?.(cell));
      const least = amounts.every((amount) => amount !== undefined) && amounts[0] !== amounts[1] ? Math.min(...amounts) : null;
      grid.append(element("div", { className: "cx-label" }, row.label));
      [a, b].forEach((cell, place) => {
        const isLeast = least !== null && amounts[place] === least;
        grid.append(element("div", { className: `cx-value${isLeast ? " cx-better" : ""}` }, row.node ? row.node(cell) : row.text(cell)));
      });
    }
    const close = element("button", { type: "button", className: "cx-button" }, "Close");
    close.addEventListener("click", () => { chosen = []; show(); });
    const devices = distinct([a, b].flatMap((cell) => cell.speed.map((entry) => entry.device)));
    return [element("div", { className: "cx-head" }, element("strong", {}, "Side by side"), close), grid,
      element("p", { className: "cx-source" }, `Amounts at T, B, I, H = ${shape}; speed on two threads. ${devices.join("; ")}. The floor is the time of the products alone. The smaller of two amounts is bold; times of different runs are not compared.`)];
  }

  // --- the whole -------------------------------------------------------------------------------

  const wanted = () => Object.fromEntries(FILTERS.map((id) => [id, get(id).value.trim()]));

  function show() {
    const filters = wanted();
    const found = ordered(cells.filter((cell) => fits(cell, filters)), filters.order);
    get("count").textContent = `${found.length} of ${cells.length} cells; amounts at T, B, I, H = ${shape}, float32, speed on two threads`;
    get("grid").replaceChildren(...(found.length ? found.map(card)
      : [element("p", { className: "cx-none" }, "No cell fits. Reset the filters.")]));
    const pair = chosen.map((name) => by.get(name));
    get("compare").hidden = pair.length < 2;
    get("compare").replaceChildren(...(pair.length === 2 ? comparison(pair) : []));
    get("bar").hidden = pair.length !== 1;
    get("bar").textContent = pair.length === 1 ? `Compare ${pair[0].name} with: choose another cell` : "";
    remember(filters);
  }

  function remember(filters) {
    const address = new URLSearchParams();
    for (const [id, value] of Object.entries(filters)) if (value) address.set(id, value);
    if (chosen.length) address.set("compare", chosen.join(","));
    const text = address.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname.split("/").pop() || ".");
  }

  function recall() {
    const address = new URLSearchParams(location.hash.slice(1));
    for (const id of FILTERS) if (address.has(id)) get(id).value = address.get(id);
    chosen = (address.get("compare") ?? "").split(",").filter((name) => by.has(name)).slice(0, 2);
  }

  const years = ascending(cells.map((cell) => cell.year));
  fill("recurrence", distinct(cells.map((cell) => cell.recurrence)));
  fill("levels", ascending(cells.map((cell) => cell.levels)));
  fill("states", ascending(cells.map((cell) => cell.states.length)));
  fill("from", years);
  fill("to", years);
  recall();
  get("filters").addEventListener("input", show);
  get("filters").addEventListener("submit", (event) => event.preventDefault());
  get("filters").addEventListener("reset", () => setTimeout(show));
  window.addEventListener("hashchange", () => { recall(); show(); });
  show();
})();
