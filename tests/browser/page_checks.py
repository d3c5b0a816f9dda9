"""Scripts that check a page in the browser, beside axe-core. Each returns a list of findings, empty if there are
none."""

# What passes the edge is named as far as it can be found; closed menus have the place of when they were last open.
SPILL = """() => {
  const root = document.documentElement, over = root.scrollWidth - root.clientWidth;
  const isOut = ({ left, right }) => left < -1 || right > root.clientWidth + 1;
  return over <= 0 ? [] : [`too wide by ${over} px`, ...[...document.querySelectorAll("body *")]
    .filter((node) => node.checkVisibility() && isOut(node.getBoundingClientRect()))
    .map((node) => `too wide: ${node.outerHTML.slice(0, 120)}`).slice(0, 5)];
}"""

HEADINGS = """() => {
  const shown = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((node) => node.checkVisibility());
  const levels = shown.map((node) => Number(node.tagName[1]));
  return shown.filter((node, at) => (at ? levels[at] === 1 || levels[at] > levels[at - 1] + 1 : levels[0] !== 1))
    .map((node) => `heading out of order: ${node.outerHTML.slice(0, 120)}`);
}"""
# A field is seen by its edge; WCAG 1.4.11 asks for 3:1 with what is around it.
EDGES = """() => {
  const channel = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  };
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return /, 0\\)$/.test(colour) ? behind(node.parentElement) : colour;
  };
  const contrast = (node) => {
    const edge = light(getComputedStyle(node).borderTopColor), around = light(behind(node.parentElement));
    return (Math.max(edge, around) + 0.05) / (Math.min(edge, around) + 0.05);
  };
  return [...document.querySelectorAll("input, select, textarea")]
    .filter((node) => node.checkVisibility() && !["checkbox", "radio", "hidden", "file"].includes(node.type))
    .filter((node) => !node.closest(".xterm") && contrast(node) < 3)
    .map((node) => `edge of ${contrast(node).toFixed(2)}:1: ${node.outerHTML.slice(0, 120)}`);
}"""
# Words of neighbouring columns stand apart.
TOUCHING = """() => {
  const edge = (node) => node.getBoundingClientRect().right - parseFloat(getComputedStyle(node).paddingRight);
  const words = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const inner = range.getBoundingClientRect();
    const cut = [cell, ...cell.querySelectorAll("*")].filter((node) => getComputedStyle(node).overflowX === "hidden");
    return inner.width ? [inner.left, Math.min(inner.right, ...cut.map(edge))] : null;
  };
  const found = [];
  for (const row of document.querySelectorAll("tr")) {
    if (getComputedStyle(row).display !== "table-row") continue;
    const shown = [...row.cells].filter((cell) => cell.checkVisibility());
    const cells = shown.map((cell) => [cell, words(cell)]).filter(([, at]) => at);
    for (let at = 1; at < cells.length; at += 1) {
      const gap = cells[at][1][0] - cells[at - 1][1][1];
      if (gap < 12) found.push(`columns ${gap.toFixed(0)} px apart: ${cells[at][0].outerHTML.slice(0, 120)}`);
    }
  }
  return found.slice(0, 5);
}"""
# Decimal points of a column stand below one another.
CROOKED = """() => {
  const end = (cell) => {
    const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
    const whole = /^\\s*[\\d,]+/.exec(words?.data ?? "");
    if (!whole || !/^[\\d,]+(\\.\\d+)?\\s*$/.test(cell.textContent.trim())) return null;
    const range = document.createRange();
    range.setStart(words, 0);
    range.setEnd(words, whole[0].length);
    return range.getBoundingClientRect().right;
  };
  const column = (body, index) => [...body.rows].map((row) => row.cells[index])
    .filter((cell) => cell?.matches(".num") && cell.checkVisibility());
  const columns = [...document.querySelectorAll("tbody")].filter((body) => getComputedStyle(body).display !== "block")
    .flatMap((body) => [...(body.rows[0]?.cells ?? [])].map((_, index) => column(body, index)));
  return columns.filter((cells) => {
    const ends = cells.map(end).filter((at) => at !== null);
    return Math.max(...ends) - Math.min(...ends) > 1;
  }).map((cells) => `points apart: ${cells.map((cell) => cell.textContent.trim()).join(" | ")}`);
}"""
# A panel is as tall as what it holds; .story keeps some room, so that what happens next moves nothing.
STRETCHED = """() => {
  const empty = (panel) => {
    const inside = [...panel.children].filter((node) => node.checkVisibility())
      .filter((node) => !["absolute", "fixed"].includes(getComputedStyle(node).position));
    const bottom = (node) => node.getBoundingClientRect().bottom;
    return bottom(panel) - Math.max(...inside.map(bottom));
  };
  return [...document.querySelectorAll(".panel")].filter((panel) => panel.checkVisibility())
    .filter((panel) => empty(panel) > (panel.matches(".story") ? 80 : 32))
    .map((panel) => `${empty(panel).toFixed(0)} px of empty panel: ${panel.outerHTML.slice(0, 120)}`);
}"""
# On a wide screen what is shown stands in the middle of what there is.
HANGING = """() => {
  const page = document.querySelector("main.page");
  if (!page) return [];
  const left = page.getBoundingClientRect().left - document.querySelector(".nav").getBoundingClientRect().right;
  const right = innerWidth - page.getBoundingClientRect().right;
  return Math.abs(left - right) > 16 ? [`empty: ${left} px on one side, ${right} px on the other`] : [];
}"""
# A drawing whose colour is not set is black, which is no colour of ours.
BLACK = """() => [...document.querySelectorAll("svg rect, svg path, svg line")]
  .filter((node) => node.checkVisibility() && !node.closest(".chart-plot, #js-plotly-tester, pattern"))
  .filter((node) => [getComputedStyle(node).fill, getComputedStyle(node).stroke].includes("rgb(0, 0, 0)"))
  .map((node) => `black: ${node.outerHTML.slice(0, 120)} in ${node.parentElement.outerHTML.slice(0, 60)}`)
  .slice(0, 5)"""
# Gives all ages the longest text that an age has.
AGED = """async () => {
  const { showSince } = await import("/static/js/format.js");
  for (const node of document.querySelectorAll("[data-since=ago]")) {
    node.dateTime = new Date(Date.now() - 3_598_000).toISOString();
    showSince(node);
  }
}"""
# What a list says of a row is seen without scrolling sideways.
ASIDE = """() => [...document.querySelectorAll(".list")].map((table) => [table, table.closest(".table-wrap")])
  .filter(([, wrap]) => wrap && wrap.scrollWidth > wrap.clientWidth + 1)
  .map(([table]) => `scrolls sideways: ${table.outerHTML.slice(0, 120)}`)"""
# A column is as wide as the words in it.
SQUEEZED = """() => [...document.querySelectorAll("td")].filter((cell) => cell.checkVisibility()).map((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return [cell, range.getBoundingClientRect()];
}).filter(([, { width, height }]) => height > 90 && width < 80)
  .map(([cell, { width }]) => `squeezed into ${width.toFixed(0)} px: ${cell.outerHTML.slice(0, 120)}`)"""
# A row has as many cells as its table has headings: a hidden one moves those after it below other headings.
SHIFTED = """() => {
  const shown = (row) => [...row.cells].filter((cell) => getComputedStyle(cell).display !== "none")
    .reduce((sum, cell) => sum + cell.colSpan, 0);
  return [...document.querySelectorAll("table")]
    .filter(({ tHead }) => tHead?.checkVisibility() && getComputedStyle(tHead).display === "table-header-group")
    .flatMap(({ tHead, tBodies }) => [...tBodies].flatMap((body) => [...body.rows])
      .filter((row) => row.checkVisibility() && shown(row) !== shown(tHead.rows[0])))
    .map((row) => `cells below other headings: ${row.outerHTML.slice(0, 160)}`).slice(0, 3);
}"""
REPEATED = """() => [...document.querySelectorAll("[id]")].map((node) => node.id)
  .filter((id, at, all) => all.indexOf(id) !== at).map((id) => `repeated id: ${id}`)"""

EVERYWHERE = (SPILL, HEADINGS, EDGES, TOUCHING, CROOKED, STRETCHED, BLACK, SQUEEZED, SHIFTED, REPEATED)
