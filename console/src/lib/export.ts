// Files that the browser saves.

/** A CSV of rows. A cell that a spreadsheet would take for a formula begins with an apostrophe. */
export function csv(titles: string[], rows: (string | number)[][]): string {
  const cell = (value: string | number): string => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [titles, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function save(name: string, text: string, type: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const made = document.createElement("a");
  made.href = address;
  made.download = name;
  made.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
