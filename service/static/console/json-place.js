// Places in JSON text: from a JSON pointer to a range of characters, and the first syntax error.
// It has no reference to the browser, so that it can be tested alone.

export class SyntaxProblem extends Error {
  constructor(message, offset) { super(message); this.offset = offset; }
}

// The ranges of all values by pointer: Map of pointer -> { start, end, key }; key is the range of the member's name.
// Throws SyntaxProblem. No recursion, because nesting may be deep.
export function places(text) {
  const found = new Map(), open = [];
  let at = 0, pointer = "", key = null;
  const space = () => { while (at < text.length && " \t\n\r".includes(text[at])) at++; };
  const fail = (wanted) => {
    const seen = at >= text.length ? "the end of the text" : `'${text[at]}'`;
    throw new SyntaxProblem(`expected ${wanted}, found ${seen}`, Math.min(at, text.length));
  };
  const string = () => {
    const start = at;
    const match = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
    match.lastIndex = at;
    if (!match.test(text)) {
      const end = text.indexOf("\n", at);
      throw new SyntaxProblem("the string does not end, or has an invalid character", end < 0 ? start : Math.max(start, end - 1));
    }
    at = match.lastIndex;
    return [start, at];
  };
  const name = () => {  // of the next member
    space();
    if (text[at] !== '"') fail("a name in double quotes");
    const [start, end] = string(), frame = open[open.length - 1];
    const word = JSON.parse(text.slice(start, end));
    if (frame.seen.has(word)) throw new SyntaxProblem(`the name ${JSON.stringify(word)} occurs twice`, start);
    frame.seen.add(word);
    space();
    if (text[at] !== ":") fail("':'");
    at++;
    pointer = `${frame.pointer}/${word.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    key = [start, end];
  };
  for (;;) {
    space();  // a value begins here
    const start = at, first = text[at];
    if (first === "{" || first === "[") {
      open.push({ pointer, start, key, list: first === "[", count: 0, seen: new Set() });
      at++;
      space();
      if (text[at] !== (first === "[" ? "]" : "}")) {
        if (first === "[") { pointer += "/0"; key = null; } else name();
        continue;
      }
    } else {
      if (first === '"') string();
      else {
        const match = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
        match.lastIndex = at;
        if (!match.test(text)) fail("a value");
        at = match.lastIndex;
      }
      found.set(pointer, { start, end: at, key });
    }
    for (;;) {  // a value has ended, or an empty list or object ends here
      if (!open.length) {
        space();
        if (at < text.length) fail("the end of the text");
        return found;
      }
      const frame = open[open.length - 1];
      space();
      if (text[at] === (frame.list ? "]" : "}")) {
        at++;
        found.set(frame.pointer, { start: frame.start, end: at, key: frame.key });
        open.pop();
        continue;
      }
      if (text[at] !== ",") fail(frame.list ? "',' or ']'" : "',' or '}'");
      at++;
      if (frame.list) { pointer = `${frame.pointer}/${++frame.count}`; key = null; } else name();
      break;
    }
  }
}

// The range of the value at `pointer`, or of the nearest value around it.
export function placeOf(found, pointer) {
  for (let each = pointer; ; each = each.slice(0, each.lastIndexOf("/"))) {
    const place = found.get(each);
    if (place) return place;
    if (!each) return { start: 0, end: 0, key: null };
  }
}

// Line and column of an offset, from 1.
export function lineAndColumn(text, offset) {
  const before = text.slice(0, offset), line = before.split("\n").length;
  return { line, column: offset - before.lastIndexOf("\n") };
}
