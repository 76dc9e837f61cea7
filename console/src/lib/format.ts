// Numbers, times and foreign text, for people.

const round = (x: number): string =>
  (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2)).replace(/\.0+$/, "");

function scaled(x: number, units: string[], step: number): string {
  let unit = 0;
  while (Math.abs(x) >= step && unit < units.length - 1) {
    x /= step;
    unit += 1;
  }
  return `${round(x)}${units[unit]}`;
}

export const bytes = (x: number): string => scaled(x, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024);
export const short = (x: number): string => scaled(x, ["", " k", " M", " G"], 1000);
export const count = (x: number): string => x.toLocaleString("en");
export const decimal = round;

/** A time span in seconds. */
export function span(seconds: number): string {
  if (!Number.isFinite(seconds)) return "none";
  if (seconds <= 0) return "0 s";
  if (seconds < 1e-3) return `${round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${round(seconds * 1e3)} ms`;
  if (seconds < 120) return `${round(seconds)} s`;
  if (seconds < 7200) return `${round(seconds / 60)} min`;
  if (seconds < 172_800) return `${round(seconds / 3600)} h`;
  return `${round(seconds / 86_400)} days`;
}

export const spanMs = (ms: number): string => span(ms / 1000);

/** Prices and costs are in billionths. */
export const BILLION = 1e9;
export const money = (billionths: number): string =>
  (billionths / BILLION).toLocaleString("en", { maximumFractionDigits: 6 });

/** At least two digits. */
export const two = (x: number): string => String(x).padStart(2, "0");

export function time(ms: number): string {
  const at = new Date(ms);
  return `${day(ms)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms: number): string {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** Days of usage begin at midnight UTC. */
export const utcDay = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

export const shortId = (id: string): string => (id.length > 12 ? `…${id.slice(-10)}` : id);

// As `protocol::text`: control characters and bidirectional overrides are escaped, except line ends where they are wanted.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const UNSAFE_IN_LINES = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const escaped = (c: string): string => `\\u{${c.charCodeAt(0).toString(16)}}`;

/** Foreign text in one line. */
export function line(text: string, most = 300): string {
  const safe = text.slice(0, most).replace(UNSAFE, escaped);
  return text.length > most ? `${safe}…` : safe;
}

/** Foreign text in several lines. */
export const lines = (text: string): string => text.replace(/\r\n/g, "\n").replace(UNSAFE_IN_LINES, escaped);

/** The bytes of a text in base64. */
export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  return Uint8Array.from(binary, (c) => c.charCodeAt(0));
}
