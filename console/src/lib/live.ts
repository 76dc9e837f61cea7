// Data that stays current: read again at intervals, at events of the manager, and after an action.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { ApiError, eventsAddress, messageOf } from "../api/client";

export interface Live<T> {
  data: T | null;
  error: string | null;
  /** Code of the last error. */
  code: string | null;
  reload: () => void;
}

const RETRY_MS = 1_000;
/** A slow answer is asked for less often: the manager spends at most this part of its time on it. */
const SHARE = 0.1;

/** Milliseconds until the next request, after one that began at this time of `performance.now`. */
export const pauseAfter = (begun: number, everyMs: number): number => Math.max(everyMs, (performance.now() - begun) / SHARE);

/** Reads now, then every `everyMs` while the page is visible, and at once when `keys` change. */
export function useLive<T>(read: () => Promise<T>, keys: unknown[], everyMs = 3_000, watchesEvents = false): Live<T> {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<{ message: string; code: string } | null>(null);
  const [turn, setTurn] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  const key = JSON.stringify(keys);
  const shown = useRef(key);
  useEffect(() => {
    let over = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    if (shown.current !== key) {
      shown.current = key;
      setData(null);
      setError(null);
    }
    const step = async (): Promise<void> => {
      const begun = performance.now();
      let pause = everyMs;
      try {
        const found = await latest.current();
        if (over) return;
        setData(found);
        setError(null);
        if (everyMs > 0) pause = pauseAfter(begun, everyMs);
      } catch (caught) {
        if (over) return;
        const code = caught instanceof ApiError ? caught.code : "internal";
        // The last data stays visible while the manager is away.
        if (code !== "offline") setError({ message: messageOf(caught), code });
        pause = code === "offline" ? RETRY_MS : Math.max(everyMs, RETRY_MS);
      }
      if (pause > 0) timer = setTimeout(() => void (document.hidden ? waitVisible() : step()), pause);
    };
    const waitVisible = (): void => {
      const again = (): void => {
        document.removeEventListener("visibilitychange", again);
        if (!over) void step();
      };
      document.addEventListener("visibilitychange", again);
    };
    void step();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [key, everyMs, turn]);
  useEvents(reload, watchesEvents);
  return { data, error: error?.message ?? null, code: error?.code ?? null, reload };
}

const CALM_MS = 400;
const watchers = new Set<() => void>();
let socket: WebSocket | null = null;
let calm: ReturnType<typeof setTimeout> | undefined;

function connect(): void {
  if (socket || watchers.size === 0) return;
  const made = new WebSocket(eventsAddress());
  socket = made;
  made.onmessage = () => {
    // Many events come at once when a lease of many workers ends.
    calm ??= setTimeout(() => {
      calm = undefined;
      watchers.forEach((watcher) => watcher());
    }, CALM_MS);
  };
  made.onclose = () => {
    if (socket === made) socket = null;
    setTimeout(connect, RETRY_MS);
  };
}

/** Calls `watcher` soon after events of nodes and leases. */
export function useEvents(watcher: () => void, wanted = true): void {
  useEffect(() => {
    if (!wanted) return;
    watchers.add(watcher);
    connect();
    return () => {
      watchers.delete(watcher);
      if (watchers.size === 0) {
        socket?.close();
        socket = null;
      }
    };
  }, [watcher, wanted]);
}

/** The present time, which advances every second. */
export function useNow(everyMs = 1_000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** Whether the window is at most this wide, in pixels. */
export function useNarrow(most = 720): boolean {
  const [is, setIs] = useState(() => matchMedia(`(max-width: ${most}px)`).matches);
  useEffect(() => {
    const query = matchMedia(`(max-width: ${most}px)`);
    const follow = (): void => setIs(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, [most]);
  return is;
}
