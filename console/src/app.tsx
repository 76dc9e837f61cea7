// The frame around all views: the session, the navigation, and whether the manager can be reached.

import type { JSX } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { api, messageOf, watchSession } from "./api/client";
import type { Token } from "./api/types";
import { Toasts } from "./components/toast";
import { line } from "./lib/format";
import { link, useRoute } from "./lib/router";
import { Session } from "./lib/session";
import { nextTheme, theme } from "./lib/theme";
import { NAVIGATION, viewOf } from "./views";
import { LogIn } from "./views/login";

type Who = { state: "unknown" } | { state: "nobody"; why: string } | { state: "in"; token: Token };

/** A ticket, or a token, behind the `#` of the address. It is taken out of sight at once. */
function secretInAddress(): { ticket: string } | { token: string } | null {
  const given = new URLSearchParams(location.hash.replace(/^#\/?/, ""));
  const [ticket, token, task] = [given.get("ticket"), given.get("token"), given.get("task")];
  if (!ticket && !token && !task) return null;
  history.replaceState(null, "", task ? link(["tasks", task]) : location.pathname);
  return ticket ? { ticket } : token ? { token } : null;
}

async function firstSession(): Promise<Who> {
  const secret = secretInAddress();
  const route = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (location.hash.startsWith("#/login") && route.get("error")) {
    history.replaceState(null, "", location.pathname);
    return { state: "nobody", why: route.get("error") ?? "" };
  }
  try {
    return { state: "in", token: await (secret ? api.logIn(secret) : api.session()) };
  } catch (error) {
    return { state: "nobody", why: secret ? messageOf(error) : "" };
  }
}

export function App(): JSX.Element {
  const [who, setWho] = useState<Who>({ state: "unknown" });
  const [isAway, setAway] = useState(false);
  useEffect(() => {
    watchSession(
      () => setWho((old) => (old.state === "in" ? { state: "nobody", why: "The session has ended. Log in again." } : old)),
      (reached) => setAway(!reached),
    );
    void firstSession().then(setWho);
    // An address with a ticket may be opened in a tab that shows the console already.
    const follow = (): void => {
      if (/^#(ticket|token)=/.test(location.hash)) void firstSession().then(setWho);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const enter = useCallback((token: Token) => setWho({ state: "in", token }), []);
  const leave = useCallback(() => {
    void api
      .logOut()
      .catch(() => undefined)
      .then(() => setWho({ state: "nobody", why: "" }));
  }, []);
  return (
    <>
      {isAway && (
        <p class="away" role="status">
          The manager does not respond. What is shown may be old; the console tries again.
        </p>
      )}
      {who.state === "nobody" && <LogIn why={who.why} enter={enter} />}
      {who.state === "in" && (
        <Session.Provider value={who.token}>
          <Shell token={who.token} leave={leave} />
        </Session.Provider>
      )}
      <Toasts />
    </>
  );
}

function Shell({ token, leave }: { token: Token; leave: () => void }): JSX.Element {
  const route = useRoute();
  const [isOpen, setOpen] = useState(false);
  const [shade, setShade] = useState(theme);
  const main = useRef<HTMLElement>(null);
  const place = route.path.join("/");
  const isFirst = useRef(true);
  useEffect(() => {
    setOpen(false);
    // A screen reader continues at the new view.
    if (!isFirst.current) main.current?.querySelector("h1")?.focus();
    isFirst.current = false;
    const title = main.current?.querySelector("h1")?.textContent;
    document.title = title ? `${title} - Dayfly` : "Dayfly";
  }, [place]);
  const isIn = (path: string): boolean => (route.path[0] ?? "") === path;
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>
        Skip to the view
      </a>
      <header class={`side ${isOpen ? "open" : ""}`}>
        <div class="top">
          <a class="brand" href="#/">
            Dayfly
          </a>
          <button type="button" class="menu" aria-expanded={isOpen} aria-controls="navigation" onClick={() => setOpen(!isOpen)}>
            Menu
          </button>
        </div>
        <nav id="navigation" aria-label="Views">
          {NAVIGATION.map(({ title, entries }) => (
            <div key={title}>
              <h2>{title}</h2>
              <ul>
                {entries.filter(({ shown }) => shown?.(token) ?? true).map(({ path, name }) => (
                  <li key={path}>
                    <a href={link(path ? [path] : [])} aria-current={isIn(path) ? "page" : undefined}>
                      {name}
                    </a>
                  </li>
                ))}
              </ul>
            </div>
          ))}
        </nav>
        <div class="who">
          <div>
            <b>{line(token.tenant, 64)}</b>, {token.role}
            {token.read_only ? ", may only read" : ""}
          </div>
          <div class="faint">{line(token.name, 80)}</div>
          <div class="buttons">
            <button type="button" class="small" onClick={() => setShade(nextTheme())}>
              Theme: {shade}
            </button>
            <button type="button" class="small" onClick={leave}>
              Log out
            </button>
          </div>
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {viewOf(route)}
      </main>
    </div>
  );
}
