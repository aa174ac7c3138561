// Checks of a page, run inside it: each returns a list of what is wrong.
"use strict";
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
window.checks = {};

// Texts whose contrast is below that of WCAG 2.2, level AA: 4.5, or 3 for large ones.
window.checks.contrast = () => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, under) => ({ a: 1, ...Object.fromEntries(["r", "g", "b"].map((c) => [c, top[c] * top.a + under[c] * (1 - top.a)])) });
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), { r: 255, g: 255, b: 255, a: 1 });
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    if (!walker.currentNode.data.trim() || element.closest("[hidden], .hidden-text, .behind, noscript, option, datalist, :disabled, .skip")) continue;
    if (!element.getClientRects().length) continue;
    const under = behind(element), ink = over(parse(style.color), under);
    const [low, high] = [light(under), light(ink)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${element.tagName} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return found;
};

// Controls without a name, broken references, and a wrong order of headings or focus.
window.checks.names = () => {
  const found = [];
  const text = (id) => document.getElementById(id)?.textContent.trim();
  for (const each of document.querySelectorAll("a, button, input, select, textarea, canvas, svg, [role=region], nav, dialog, section, figure")) {
    if (!each.getClientRects().length || each.closest("[aria-hidden=true]")) continue;
    const labelled = (each.getAttribute("aria-labelledby") || "").split(" ").map(text).join("");
    const name = each.getAttribute("aria-label") || labelled || [...(each.labels || [])].map((l) => l.textContent).join("").trim()
      || (["A", "BUTTON", "FIGURE"].includes(each.tagName) && each.textContent.trim());
    if (!name) found.push(`without a name: ${each.outerHTML.slice(0, 120)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id twice: ${id}`);
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for", "list"]) {
    for (const each of document.querySelectorAll(`[${name}]`)) {
      for (const id of each.getAttribute(name).split(" ")) if (!document.getElementById(id)) found.push(`${name} without target: ${id}`);
    }
  }
  for (const each of document.querySelectorAll("img:not([alt])")) found.push(`image without a text: ${each.src}`);
  for (const each of document.querySelectorAll("th:not([scope])")) found.push(`header without a scope: ${each.textContent}`);
  for (const each of document.querySelectorAll("[tabindex]")) if (each.tabIndex > 0) found.push(`changes the order of focus: ${each.outerHTML.slice(0, 80)}`);
  if (document.querySelectorAll("h1").length !== 1) found.push("not exactly one h1");
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((each) => Number(each.tagName[1]));
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) found.push(`a level of headings is skipped at ${i}`); });
  for (const landmark of ["header", "nav", "main"]) if (document.querySelectorAll(`body > ${landmark}`).length !== 1) found.push(`not one ${landmark}`);
  if (!document.documentElement.lang) found.push("no language");
  return found;
};

// Parts that do not fit into the window.
window.checks.width = () => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const each of document.querySelectorAll("button, input, select, textarea, h1, h2, canvas, .card")) {
    const box = each.getBoundingClientRect();
    if (box.width && !each.closest(".hidden-text, .scroll, .skip") && (box.right > width + 1 || box.left < -1)) found.push(`${each.tagName} ${each.className} to ${Math.round(box.right)}`);
  }
  return found;
};

// The colours of the theme by name.
window.checks.colours = (theme) => {
  document.documentElement.dataset.theme = theme;
  const style = getComputedStyle(document.documentElement);
  const names = ["--card", "--bg", "--field", "--accent", "--mark", "--ink", ...Array.from({ length: 8 }, (_, i) => `--series-${i + 1}`)];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
};

// Where the focus is, and the style of its outline.
window.checks.focus = () => {
  const element = document.activeElement;
  return [element.id || element.outerHTML, getComputedStyle(element).outlineStyle];
};

// Results of an inline script and of a call to another host.
window.checks.foreign = async () => {
  const script = document.createElement("script");
  script.append("window.foreign = 1");
  document.body.append(script);
  const called = await fetch("http://127.0.0.2:9/").then(() => "sent", () => "blocked");
  await new Promise((resolve) => setTimeout(resolve, 200));
  return [window.foreign ?? null, called, window.violations.length > 0];
};
