// A bar of filters. They are in the address, so that a filtered view can be shared and survives a reload.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { setQuery, useRoute } from "../lib/router";
import { Select } from "./dialog";

export interface Filter {
  key: string;
  label: string;
  /** Choices; a field for text without them. */
  options?: [string, string][];
  type?: "text" | "datetime-local" | "date";
  /** Suggestions for a text. */
  suggestions?: string[];
}

const CALM_MS = 350;

function TextFilter({ filter, value, set }: { filter: Filter; value: string; set: (value: string) => void }): JSX.Element {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => set(text), CALM_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const list = filter.suggestions ? `list-${filter.key}` : undefined;
  return (
    <>
      <input type={filter.type ?? "text"} value={text} list={list} autocomplete="off" spellcheck={false}
        onInput={(event) => setText(event.currentTarget.value)} />
      {list && (
        <datalist id={list}>
          {filter.suggestions?.slice(0, 500).map((name) => <option key={name} value={name} />)}
        </datalist>
      )}
    </>
  );
}

export function Filters({ filters }: { filters: Filter[] }): JSX.Element {
  const { query } = useRoute();
  const set = (key: string, value: string): void => setQuery({ ...query, [key]: value });
  const isSet = filters.some(({ key }) => query[key]);
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      {filters.map((filter) => (
        <label key={filter.key}>
          <span>{filter.label}</span>
          {filter.options ? (
            <Select value={query[filter.key] ?? ""} set={(value) => set(filter.key, value)} options={filter.options} />
          ) : (
            <TextFilter filter={filter} value={query[filter.key] ?? ""} set={(value) => set(filter.key, value)} />
          )}
        </label>
      ))}
      {isSet && (
        <button type="button" onClick={() => setQuery(Object.fromEntries(Object.entries(query).filter(([key]) => !filters.some((filter) => filter.key === key))))}>
          Clear filters
        </button>
      )}
    </form>
  );
}
