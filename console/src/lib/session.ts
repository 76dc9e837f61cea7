// Who is logged in, as far as views need it.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

import type { Role, Token } from "../api/types";

export const Session = createContext<Token | null>(null);

const ROLES: Role[] = ["user", "operator", "administrator"];

export interface Rights extends Token {
  /** Whether the role is at least this one. */
  is: (role: Role) => boolean;
  /** Whether it may also change something. */
  may: (role: Role) => boolean;
}

export function useRights(): Rights {
  const token = useContext(Session);
  if (!token) throw new Error("a view needs a session");
  const is = (role: Role): boolean => ROLES.indexOf(token.role) >= ROLES.indexOf(role);
  return { ...token, is, may: (role) => is(role) && !token.read_only };
}
