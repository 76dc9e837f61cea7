//! Bodies of the manager's HTTP API, for leases, nodes and the site. Its other bodies are in
//! [`functions`](crate::functions), [`tasks`](crate::tasks), [`endpoints`](crate::endpoints),
//! [`sharing`](crate::sharing), [`triggers`](crate::triggers), [`flows`](crate::flows), [`queries`](crate::queries) and
//! [`tenancy`](crate::tenancy).

mod allowances;
mod leases;
mod loan_series;
mod loans;
mod nodes;
mod profiles;
mod site;
mod usage;

pub use allowances::*;
pub use leases::*;
pub use loan_series::*;
pub use loans::*;
pub use nodes::*;
pub use profiles::*;
pub use site::*;
pub use usage::*;

/// For serde: whether a value is the default and is left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
