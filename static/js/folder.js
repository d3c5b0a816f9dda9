// Files of a folder that the user chose in a form.

/** The path of a file below the folder; its name if it was chosen alone. */
export function pathBelow(file) {
  const relative = file.webkitRelativePath.split("/").slice(1).join("/");
  // Chromium turns a backslash in it into a slash, but not in the file's own name.
  return relative.length > file.name.length ? relative.slice(0, -file.name.length) + file.name : file.name;
}
