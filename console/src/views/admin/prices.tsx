// Prices for tenants without prices of their own.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../../api/client";
import type { Prices } from "../../api/types";
import { ActionDialog, Field, Input } from "../../components/dialog";
import { Card, Facts, Pending } from "../../components/parts";
import { BILLION, money } from "../../lib/format";
import { useLive } from "../../lib/live";
import { useRights } from "../../lib/session";

const NAMES: [keyof Prices, string][] = [
  ["allocation_per_gib_s", "Allocated memory, per GiB and second"],
  ["core_per_s", "Core that a worker owns, per second"],
  ["gpu_per_s", "GPU that a worker owns, per second"],
  ["computing_per_s", "Computing, per second"],
  ["polling_per_s", "Polling, per second"],
  ["borrowed_core_per_s", "Borrowed core, per second"],
  ["borrowed_per_gib_s", "Borrowed memory, per GiB and second"],
];

type PriceTexts = Record<keyof Prices, string>;

/** The texts of the fields for prices. */
export function priceTexts(prices: Prices | null | undefined): PriceTexts {
  return Object.fromEntries(NAMES.map(([key]) => [key, String((prices?.[key] ?? 0) / BILLION)])) as PriceTexts;
}

export function pricesOf(texts: PriceTexts): Prices {
  return Object.fromEntries(NAMES.map(([key]) => [key, Math.round(Number(texts[key]) * BILLION)])) as unknown as Prices;
}

export function PriceFields({ texts, set }: { texts: PriceTexts; set: (texts: PriceTexts) => void }): JSX.Element {
  return (
    <>
      {NAMES.map(([key, name]) => (
        <Field key={key} label={name}>
          <Input type="number" min="0" step="any" value={texts[key]} set={(value) => set({ ...texts, [key]: value })} required />
        </Field>
      ))}
    </>
  );
}

export function Pricing(): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.prices, [], 15_000);
  const [isOpen, setOpen] = useState(false);
  if (!data) return <Pending error={error} />;
  return (
    <Card title="Prices" actions={rights.may("administrator") && <button type="button" onClick={() => setOpen(true)}>Change the prices</button>}>
      <Facts of={NAMES.map(([key, name]) => [name, money(data[key] ?? 0)])} />
      <p class="faint">They hold for tenants without prices of their own, for leases that are granted from now on.</p>
      {isOpen && <PricesDialog prices={data} onClose={() => setOpen(false)} reload={reload} />}
    </Card>
  );
}

function PricesDialog({ prices, onClose, reload }: { prices: Prices; onClose: () => void; reload: () => void }): JSX.Element {
  const [texts, setTexts] = useState(priceTexts(prices));
  return (
    <ActionDialog title="Prices" action="Set the prices" onClose={onClose} act={async () => {
      await api.setPrices(pricesOf(texts));
      reload();
      return "The prices were set.";
    }}>
      <PriceFields texts={texts} set={setTexts} />
    </ActionDialog>
  );
}
