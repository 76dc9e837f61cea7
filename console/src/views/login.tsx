// The ways in: an identity provider, a token, or an address of `dayfly page`.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { api, messageOf } from "../api/client";
import type { LoginInfo, Token } from "../api/types";
import { Field, Input } from "../components/dialog";
import { Notice } from "../components/parts";
import { line } from "../lib/format";

export function LogIn({ why, enter }: { why: string; enter: (token: Token) => void }): JSX.Element {
  const [secret, setSecret] = useState("");
  const [error, setError] = useState(why);
  const [provider, setProvider] = useState<LoginInfo | null>(null);
  useEffect(() => {
    document.title = "Log in - Dayfly";
    // A site without a provider responds with an error.
    void api.loginInfo().then(setProvider, () => undefined);
  }, []);
  useEffect(() => setError(why), [why]);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      enter(await api.logIn({ token: secret.trim() }));
    } catch (caught) {
      setError(messageOf(caught));
    }
    setSecret("");
  };
  return (
    <main class="login">
      <div class="card">
        <h1>Dayfly</h1>
        <p class="faint">{location.host}</p>
        {error && <Notice kind="bad">{line(error, 600)}</Notice>}
        {provider?.authorization_endpoint && (
          <>
            <p>
              <a class="button wide-button" href="/v1/session/login">
                Log in with {line(provider.issuer, 100)}
              </a>
            </p>
            <p class="or">or</p>
          </>
        )}
        <form onSubmit={(event) => void submit(event)}>
          <Field label="Token" hint="The one in connection.json, or one that dayfly token create prints.">
            <Input value={secret} set={setSecret} type="password" required />
          </Field>
          <button type="submit" class="primary wide-button">
            Log in
          </button>
        </form>
        <p class="faint">
          The command <code>dayfly page</code> prints an address that logs in once without a token.
        </p>
      </div>
    </main>
  );
}
