// Modal dialogs: the browser's own, which keep the focus inside and close with Escape.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { messageOf } from "../api/client";
import { line } from "../lib/format";
import { notify } from "./toast";

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const opener = document.activeElement;
    ref.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, []);
  return (
    <dialog ref={ref} aria-labelledby="dialog-title" onClose={onClose}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface FormProps {
  title: string;
  /** Text of the button that acts. */
  action: string;
  danger?: boolean;
  onClose: () => void;
  /** Acts, and returns a message for a toast. An error stays in the dialog. */
  act: () => Promise<string | void>;
  children?: ComponentChildren;
}

/** A dialog with fields and one button that acts. */
export function ActionDialog({ title, action, danger, onClose, act, children }: FormProps): JSX.Element {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      const said = await act();
      if (said) notify(said);
      onClose();
    } catch (caught) {
      setError(messageOf(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {children}
        {error && (
          <p class="notice bad" role="alert">
            {line(error, 800)}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={onClose}>
            Close
          </button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={isBusy}>
            {action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface ActionButtonProps extends Omit<FormProps, "onClose"> {
  /** Text of the button that opens the dialog; the action's if absent. */
  label?: string;
  small?: boolean;
  disabled?: boolean;
}

/** A button that opens an action's dialog. */
export function ActionButton({ label, small, disabled, ...form }: ActionButtonProps): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const kind = [small ? "small" : "", form.danger ? "danger" : ""].join(" ").trim();
  return (
    <>
      <button type="button" class={kind} disabled={disabled} onClick={() => setOpen(true)}>
        {label ?? form.action}
      </button>
      {isOpen && <ActionDialog {...form} onClose={() => setOpen(false)} />}
    </>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

type Change = (value: string) => void;

interface InputProps {
  value: string;
  set: Change;
  type?: "text" | "password" | "number";
  required?: boolean;
  placeholder?: string;
  min?: string;
  step?: string;
  list?: string;
  pattern?: string;
}

export function Input({ value, set, type = "text", ...rest }: InputProps): JSX.Element {
  // The types know no input whose type is not known when it is written.
  const attributes = { type, autocomplete: "off", ...rest } as object;
  return <input value={value} onInput={(event) => set(event.currentTarget.value)} {...attributes} />;
}

export function Select({ value, set, options, label }: { value: string; set: Change; options: [string, string][]; label?: string }): JSX.Element {
  return (
    <select value={value} aria-label={label} onChange={(event) => set(event.currentTarget.value)}>
      {options.map(([key, text]) => (
        <option key={key} value={key}>
          {line(text, 80)}
        </option>
      ))}
    </select>
  );
}

export function Check({ value, set, label }: { value: boolean; set: (value: boolean) => void; label: string }): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={(event) => set(event.currentTarget.checked)} /> {label}
    </label>
  );
}
