//! `dayfly tenant` and `dayfly prices`: quotas, budgets and prices.

use clap::{Args, Subcommand};
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tenancy::{Prices, Tenant, TenantSpec};

use crate::output::Align::{Left, Right};
use crate::{connect, output, reach, values};

/// Show and make tenants, and set their quotas and budgets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly tenant list
  dayfly tenant set astro --budget 500 --workers 64
  dayfly tenant set astro --no-budget --price-computing 0.002
  dayfly tenant set astro --suspend

A tenant holds leases and pays for them. Its people use tokens: `dayfly token create --tenant astro`. Nodes isolate its code,
except its own nodes. `set` prints which nodes run its code, and at which sandbox level.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show tenants, their resources and their spending
    List,
    /// Make or change a tenant; options that are not given keep their values
    Set(Box<Set>),
}

/// Make or change a tenant; options that are not given keep their values.
#[derive(Debug, Args)]
struct Set {
    /// Name of the tenant
    #[arg(value_parser = values::name)]
    name: String,
    /// Limit of its total spending since it was made, in the site's unit of account; beyond it, its leases end
    #[arg(long, value_name = "AMOUNT", value_parser = values::amount)]
    budget: Option<u64>,
    /// Remove the limit of its spending
    #[arg(long, conflicts_with = "budget")]
    no_budget: bool,
    /// Maximum number of concurrent leases
    #[arg(long, value_name = "N")]
    leases: Option<u32>,
    /// Maximum number of concurrent workers
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Maximum number of cores of all its workers, owned or shared
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Maximum memory at a time, such as 64G
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Remove all quotas
    #[arg(long, conflicts_with_all = ["leases", "workers", "cores", "memory"])]
    no_quota: bool,
    #[command(flatten)]
    prices: PriceArguments,
    /// Use the site's prices
    #[arg(long, conflicts_with_all = ["allocation", "core", "gpu", "computing", "polling", "borrowed_core", "borrowed_memory"])]
    no_prices: bool,
    /// Suspend it: it gets no leases, and loses those it has
    #[arg(long)]
    suspend: bool,
    /// End the suspension
    #[arg(long, conflicts_with = "suspend")]
    resume: bool,
}

/// The prices Ca, Cc and Ch of the bill, and those of loans.
#[derive(Debug, Args)]
struct PriceArguments {
    /// Price of one GiB held for one second
    #[arg(long = "price-allocation", id = "allocation", value_name = "AMOUNT", value_parser = values::amount)]
    allocation: Option<u64>,
    /// Price of one core that a worker owns for one second
    #[arg(long = "price-core", id = "core", value_name = "AMOUNT", value_parser = values::amount)]
    core: Option<u64>,
    /// Price of one GPU that a worker owns for one second
    #[arg(long = "price-gpu", id = "gpu", value_name = "AMOUNT", value_parser = values::amount)]
    gpu: Option<u64>,
    /// Price of one second inside functions, for each core of the worker
    #[arg(long = "price-computing", id = "computing", value_name = "AMOUNT", value_parser = values::amount)]
    computing: Option<u64>,
    /// Price of one second of polling, for each core of the worker
    #[arg(long = "price-polling", id = "polling", value_name = "AMOUNT", value_parser = values::amount)]
    polling: Option<u64>,
    /// Price of one borrowed core for one second
    #[arg(long = "price-borrowed-core", id = "borrowed_core", value_name = "AMOUNT", value_parser = values::amount)]
    borrowed_core: Option<u64>,
    /// Price of one borrowed GiB for one second
    #[arg(long = "price-borrowed-memory", id = "borrowed_memory", value_name = "AMOUNT", value_parser = values::amount)]
    borrowed_memory: Option<u64>,
}

impl PriceArguments {
    fn named(&self) -> bool {
        let given = [
            self.allocation,
            self.core,
            self.gpu,
            self.computing,
            self.polling,
            self.borrowed_core,
            self.borrowed_memory,
        ];
        given.iter().any(Option::is_some)
    }

    fn over(&self, prices: Prices) -> Prices {
        Prices {
            allocation_per_gib_s: self.allocation.unwrap_or(prices.allocation_per_gib_s),
            core_per_s: self.core.unwrap_or(prices.core_per_s),
            gpu_per_s: self.gpu.unwrap_or(prices.gpu_per_s),
            computing_per_s: self.computing.unwrap_or(prices.computing_per_s),
            polling_per_s: self.polling.unwrap_or(prices.polling_per_s),
            borrowed_core_per_s: self.borrowed_core.unwrap_or(prices.borrowed_core_per_s),
            borrowed_per_gib_s: self.borrowed_memory.unwrap_or(prices.borrowed_per_gib_s),
        }
    }
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let tenants: Vec<Tenant> = client.get("/v1/tenants").map_err(|error| error.0)?;
    let shown = match &arguments.what {
        What::List => tenants,
        What::Set(set) => {
            let known = tenants.into_iter().find(|tenant| tenant.name == set.name);
            let site: Prices = client.get("/v1/prices").map_err(|error| error.0)?;
            let spec = set.over(known.map(|tenant| tenant.spec).unwrap_or_default(), site);
            let path = format!("/v1/tenants/{}", set.name);
            vec![client.put(&path, &spec).map_err(|error| error.0)?]
        }
    };
    if global.json {
        output::line(&match (&arguments.what, shown.first()) {
            (What::Set(_), Some(tenant)) => output::json(tenant)?,
            _ => output::json(&shown)?,
        });
        return Ok(());
    }
    let made = match (&arguments.what, &shown[..]) {
        (What::Set(_), [tenant]) => Some((tenant.id, tenant.name.clone())),
        _ => None,
    };
    let mut table = output::Table::new(&[
        ("TENANT", Left),
        ("LEASES", Right),
        ("WORKERS", Right),
        ("SPENT", Right),
        ("ON TASKS", Right),
        ("BUDGET", Right),
        ("QUOTA", Left),
        ("STATE", Left),
    ]);
    for tenant in shown {
        table.row([
            tenant.name.clone(),
            tenant.leases.to_string(),
            tenant.workers.to_string(),
            output::amount(tenant.spent),
            output::amount(tenant.spent_on_tasks),
            tenant.spec.budget.map_or_else(|| "-".into(), output::amount),
            quota(&tenant.spec),
            state(&tenant).into(),
        ]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    match made {
        Some((id, name)) => reach::tell(&client, id, &name),
        None => Ok(()),
    }
}

impl Set {
    fn over(&self, mut spec: TenantSpec, site: Prices) -> TenantSpec {
        spec.budget = self.budget.or(spec.budget.filter(|_| !self.no_budget));
        if self.no_quota {
            spec.quota = Default::default();
        }
        let quota = &mut spec.quota;
        quota.leases = self.leases.or(quota.leases);
        quota.workers = self.workers.or(quota.workers);
        quota.cores = self.cores.or(quota.cores);
        quota.memory_bytes = self.memory.or(quota.memory_bytes);
        if self.no_prices {
            spec.prices = None;
        } else if self.prices.named() {
            spec.prices = Some(self.prices.over(spec.prices.unwrap_or(site)));
        }
        spec.suspended = self.suspend || spec.suspended && !self.resume;
        spec
    }
}

fn quota(spec: &TenantSpec) -> String {
    let quota = &spec.quota;
    let counted = [
        (quota.leases, "lease"),
        (quota.workers, "worker"),
        (quota.cores, "core"),
    ];
    let mut parts: Vec<String> = counted
        .into_iter()
        .filter_map(|(most, thing)| most.map(|most| output::count(most.into(), thing)))
        .collect();
    parts.extend(quota.memory_bytes.map(output::size));
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

fn state(tenant: &Tenant) -> &'static str {
    match tenant.spec.budget {
        _ if tenant.spec.suspended => "suspended",
        Some(budget) if tenant.spent >= budget => "budget spent",
        _ => "in order",
    }
}

/// Show or set the site's prices.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly prices
  dayfly prices --price-allocation 0.000004 --price-computing 0.001 --price-polling 0.0005

A lease costs C = Ca ta + Cc tc + Ch th: memory held, time inside functions, time spent polling. What it borrows is free unless
`--price-borrowed-core` and `--price-borrowed-memory` are set. It keeps the prices at the time of its grant. Amounts have
up to nine decimals, in the site's unit of account.")]
pub struct PricesArguments {
    #[command(flatten)]
    prices: PriceArguments,
}

pub fn prices(arguments: &PricesArguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let mut prices: Prices = client.get("/v1/prices").map_err(|error| error.0)?;
    if arguments.prices.named() {
        let wanted = arguments.prices.over(prices);
        prices = client.put("/v1/prices", &wanted).map_err(|error| error.0)?;
    }
    output::line(&if global.json {
        output::json(&prices)?
    } else {
        format!(
            "allocation  {} for one GiB, {} for one core, {} for one GPU, held for one second\ncomputing   {} for one second inside functions, for each core\n\
             polling     {} for one second of polling, for each core\nborrowing   {} for one core, {} for one GiB, for one second",
            output::amount(prices.allocation_per_gib_s),
            output::amount(prices.core_per_s),
            output::amount(prices.gpu_per_s),
            output::amount(prices.computing_per_s),
            output::amount(prices.polling_per_s),
            output::amount(prices.borrowed_core_per_s),
            output::amount(prices.borrowed_per_gib_s)
        )
    });
    Ok(())
}
