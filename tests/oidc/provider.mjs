// A certified OpenID Connect provider for tests, on the loopback with a certificate of its own, which lets everybody in.
//
// node provider.mjs DIRECTORY-OF-MODULES SETTINGS, where SETTINGS is JSON: port, cert and key (files), kid, alg, people (claims by
// login name), back (address of a console's login). Prints a line when it listens.

import { generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { pathToFileURL } from "node:url";

const [modules, settings] = [process.argv[2], JSON.parse(process.argv[3])];
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`).href);

const kind = settings.alg === "ES256" ? ["ec", { namedCurve: "P-256" }] : ["rsa", { modulusLength: 2048 }];
const { privateKey } = generateKeyPairSync(...kind);
const key = { ...privateKey.export({ format: "jwk" }), kid: settings.kid, alg: settings.alg, use: "sig" };

const client = (id, more = {}) => ({
  client_id: id,
  application_type: "native",
  token_endpoint_auth_method: "none",
  id_token_signed_response_alg: settings.alg,
  grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
  redirect_uris: ["http://127.0.0.1/callback"],
  // Of a site whose people log in to its console.
  ...(settings.back ? { application_type: "web", redirect_uris: [settings.back] } : {}),
  ...more,
});

const provider = new Provider(`https://localhost:${settings.port}`, {
  clients: [client("dayfly"), client("another")],
  jwks: { keys: [key] },
  features: { deviceFlow: { enabled: true } },
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["preferred_username"], groups: ["groups"] },
  scopes: ["openid", "email", "profile", "groups"],
  // What is asked for stands in the ID token, and not only where an access token would find it.
  conformIdTokenClaims: false,
  cookies: { keys: ["only for tests"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...settings.people[id] }) }),
});

const tls = { cert: readFileSync(settings.cert), key: readFileSync(settings.key) };
createServer(tls, provider.callback()).listen(settings.port, "127.0.0.1", () => console.log("ready"));
