// Addresses behind the `#`: a path, and the filters of a view. Browsers send neither to the manager.

import { useEffect, useState } from "preact/hooks";

export interface Route {
  path: string[];
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const segments = path.split("/").filter(Boolean);
  const decode = (text: string): string => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return { path: segments.map(decode), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(path: string[], query: Record<string, string | undefined> = {}): string {
  const pairs = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const text = new URLSearchParams(pairs).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const go = (hash: string): void => {
  location.hash = hash;
};

/** Replaces the filters of the present view, without a new entry in the history. */
export function setQuery(query: Record<string, string | undefined>): void {
  const route = parse(location.hash);
  history.replaceState(null, "", link(route.path, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const follow = (): void => setRoute(parse(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
