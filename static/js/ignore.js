// Which files of a folder are its code, as `yard submit --code` decides it (controlplane/cli/code): with git, those in
// its index and those that no .gitignore names, else all; less what .yardignore names.

const PIECES = /\*\*\/|\/\*\*|\*|\?|\[!?\]?[^\]]*\]|\\.|[\s\S]/gu;
const WILD = { "**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]" };

/** The files of a folder's code, as [{path, file, isExecutable}], from [{path, file}]. */
export async function codeFiles(all) {
  const at = new Map(all.map((entry) => [entry.path, entry]));
  const isGit = all.some(({ path }) => path.startsWith(".git/"));
  const files = all.filter(({ path }) => !path.split("/").includes(".git"));
  const tracked = isGit ? await indexed(at.get(".git/index")?.file) : new Map();
  const ofGit = isGit ? await gitRules(files, at.get(".git/info/exclude")) : new Ignore([]);
  const ofYard = new Ignore(await rulesOf(at.get(".yardignore")));
  return files
    .filter(({ path }) => (tracked.has(path) || !ofGit.leavesOut(path)) && !ofYard.leavesOut(path))
    .map((entry) => ({ ...entry, isExecutable: tracked.get(entry.path) ?? false }));
}

/** The patterns of files like .gitignore. Of several that match a path the last one decides; none brings back what lies
 * in a directory that is left out. */
export class Ignore {
  #rules;
  #folders = new Map([["", false]]);

  constructor(rules) {
    this.#rules = rules.toReversed();
  }

  leavesOut(path) {
    return this.#isInLeftOut(path.slice(0, Math.max(0, path.lastIndexOf("/")))) || this.#matches(path, false);
  }

  #isInLeftOut(folder) {
    if (!this.#folders.has(folder)) {
      const above = folder.slice(0, Math.max(0, folder.lastIndexOf("/")));
      this.#folders.set(folder, this.#isInLeftOut(above) || this.#matches(folder, true));
    }
    return this.#folders.get(folder);
  }

  #matches(path, isFolder) {
    const rule = this.#rules.find((one) => (isFolder || !one.onlyFolders) && one.pattern.test(path));
    return rule !== undefined && !rule.isNegated;
  }
}

/** The rules of lines, which hold below a directory ("" or one that ends with a slash). */
export function rules(text, below = "") {
  return text.split("\n").map((line) => rule(line.replace(/\r$/, ""), below)).filter(Boolean);
}

function rule(line, below) {
  let text = line.replace(/(?<!\\)[ \t]+$/, "");
  if (!text || text.startsWith("#")) return null;
  const isNegated = text.startsWith("!");
  if (isNegated) text = text.slice(1);
  const onlyFolders = text.endsWith("/");
  text = text.replace(/\/+$/, "");
  const anywhere = text.includes("/") ? "" : "(?:.*/)?";
  const expression = (text.replace(/^\/+/, "").match(PIECES) ?? []).map(translated).join("");
  try {
    return { pattern: new RegExp(`^${escape(below)}${anywhere}${expression}$`, "su"), isNegated, onlyFolders };
  } catch {
    return null; // [z-a] matches nothing
  }
}

function translated(piece) {
  if (WILD[piece]) return WILD[piece];
  if (piece.length > 1 && piece[0] === "[") {
    const inside = piece.slice(1, -1).replace(/[\\[\]^]/g, "\\$&");
    return inside.startsWith("!") ? `(?!/)[^${inside.slice(1)}]` : `(?!/)[${inside}]`;
  }
  return escape(piece.length > 1 && piece[0] === "\\" ? piece.slice(1) : piece);
}

const escape = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

async function rulesOf(entry, below = "") {
  return entry ? rules(await entry.file.text(), below) : [];
}

async function gitRules(files, exclude) {
  const found = files.filter(({ path }) => path === ".gitignore" || path.endsWith("/.gitignore"));
  // What lies deeper decides over what is above it.
  found.sort((one, two) => one.path.split("/").length - two.path.split("/").length);
  const each = found.map((entry) => rulesOf(entry, entry.path.slice(0, -".gitignore".length)));
  return new Ignore([...(await rulesOf(exclude)), ...(await Promise.all(each)).flat()]);
}

/** The paths of git's index, with whether they are executable. Empty for a form of it that is not known. */
export async function indexed(file) {
  const found = new Map();
  if (!file) return found;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const view = new DataView(bytes.buffer), text = new TextDecoder();
  const version = bytes.length > 12 && text.decode(bytes.subarray(0, 4)) === "DIRC" ? view.getUint32(4) : 0;
  if (version < 2 || version > 4) return found;
  let at = 12, path = new Uint8Array();
  for (let left = view.getUint32(8); left > 0 && at + 62 <= bytes.length; left--) {
    const start = at, isExecutable = (view.getUint32(at + 24) & 0o100) !== 0;
    at += view.getUint16(at + 60) & 0x4000 ? 64 : 62;
    let kept = 0;
    if (version === 4) {
      let drop = bytes[at] & 127;
      while (bytes[at++] & 128) drop = ((drop + 1) << 7) | (bytes[at] & 127);
      kept = path.length - drop;
    }
    const end = bytes.indexOf(0, at);
    path = Uint8Array.of(...path.subarray(0, kept), ...bytes.subarray(at, end));
    found.set(text.decode(path), isExecutable);
    at = version === 4 ? end + 1 : start + 8 * (Math.floor((end - start) / 8) + 1);
  }
  return found;
}
