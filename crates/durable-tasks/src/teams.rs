//! Who shares with whom, and what tasks cost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dayfly_lease::Cost;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::sharing::{MAX_MEMBERS, MAX_TEAMS, TEAM, Team, TeamSpec};
use dayfly_protocol::tasks::{MAX_NAME_BYTES, UsageLine};
use dayfly_protocol::tenancy::Prices;
use dayfly_protocol::{api, bounds};
use dayfly_store::accounts::{TeamRecord, Usage, UsageKey};
use dayfly_store::tasks::EndpointRecord;

use crate::endpoints::LOCAL;
use crate::state::State;
use crate::submission::{Submitter, plainly_named};
use crate::triggers::to_its_end;
use crate::{Tasks, Tenants};

const DAY_MS: u64 = 24 * 3600 * 1000;
/// What tasks cost is known for so many days.
const KEPT_DAYS: u32 = 800;
/// Longest description of a team.
const MAX_DESCRIPTION: usize = 1_024;
/// Lines of one answer.
const MAX_LINES: u32 = 100_000;

/// The day of this time, counted from the Unix epoch.
pub fn day_of(ms: u64) -> u32 {
    u32::try_from(ms / DAY_MS).unwrap_or(u32::MAX)
}

/// The first day that is not forgotten.
pub fn forgotten_before(now_ms: u64) -> u32 {
    day_of(now_ms).saturating_sub(KEPT_DAYS)
}

/// Longest name: a part of paths, and of what things are shared with.
const MAX_NAME: usize = 64;

/// Teams, and who is in which.
#[derive(Default)]
pub struct Teams {
    all: HashMap<String, TeamRecord>,
    /// Of each member's name.
    of: HashMap<String, Vec<String>>,
}

impl Teams {
    /// Those that the store remembers.
    pub fn remembered(records: Vec<TeamRecord>) -> Self {
        let mut teams = Self::default();
        for team in records {
            teams.set(team);
        }
        teams
    }

    fn set(&mut self, team: TeamRecord) {
        self.forget(&team.name);
        for member in &team.spec.members {
            self.of.entry(member.clone()).or_default().push(team.name.clone());
        }
        self.all.insert(team.name.clone(), team);
    }

    fn forget(&mut self, name: &str) {
        let members = self.all.remove(name).map(|team| team.spec.members);
        for member in members.unwrap_or_default() {
            if let Some(teams) = self.of.get_mut(&member) {
                teams.retain(|team| team != name);
                if teams.is_empty() {
                    self.of.remove(&member);
                }
            }
        }
    }
}

/// Who pays for executions at one endpoint.
pub struct Charges {
    /// Whose it is, if it is elsewhere: here leases are charged.
    owner: Option<TenantId>,
    /// What the tenant pays whose task was the last.
    last: Option<(TenantId, Prices)>,
}

impl Charges {
    /// What one execution is charged: nothing to whoever the endpoint belongs to.
    pub fn cost(&mut self, tenants: &dyn Tenants, tenant: TenantId, took_us: u64, resources: &Resources) -> u64 {
        if self.owner.is_none_or(|owner| owner == tenant) {
            return 0;
        }
        let prices = match self.last {
            Some((last, prices)) if last == tenant => prices,
            _ => self.last.insert((tenant, tenants.prices(tenant))).1,
        };
        let workers = resources.workers();
        let us = took_us.saturating_mul(workers.into());
        let used = api::Usage {
            computing_us: us,
            allocated_us: us,
            ..api::Usage::default()
        };
        let memory_bytes = resources.memory_bytes.saturating_mul(workers.into());
        Cost::of(&prices, &used, memory_bytes, workers).total()
    }
}

impl State {
    /// Why nothing can be shared with these, if there is a team among them that there is not.
    pub(super) fn unknown_team(&self, shared_with: &[String]) -> Option<Failure> {
        let mut named = shared_with.iter().filter_map(|with| with.strip_prefix(TEAM));
        let unknown = named.find(|team| !self.teams.all.contains_key(*team))?;
        let text = format!("there is no team `{unknown:.80}` to share with; `dayfly team set` makes one");
        Some(Failure::new(Code::NotFound, text))
    }

    /// Who pays for what is executed at an endpoint.
    pub(super) fn charges_at(&self, id: EndpointId) -> Charges {
        let record = |id| self.endpoints.get(&id).map(|endpoint| &endpoint.record);
        let record_of_owner = |at: &EndpointRecord| match at.of {
            Some(of) => record(of.endpoint).map(|above| above.tenant),
            None => Some(at.tenant),
        };
        let at = record(id).filter(|at| at.name != LOCAL);
        Charges {
            owner: at.and_then(record_of_owner),
            last: None,
        }
    }

    /// This is written down; answers what the tenants' tasks cost in all that it made dearer.
    pub(super) fn add_costs(&mut self, usage: &[(UsageKey, Usage)]) -> Vec<(TenantId, u64)> {
        let mut charged = BTreeMap::new();
        for (key, usage) in usage.iter().filter(|(_, usage)| usage.cost > 0) {
            let total = self.costs.entry(key.tenant).or_default();
            *total = total.saturating_add(usage.cost);
            charged.insert(key.tenant, *total);
        }
        charged.into_iter().collect()
    }
}

/// Checks the name, the description and the members of a team.
///
/// # Errors
/// `InvalidRequest` for one that is too long, and for too many members.
pub fn check_team(name: &str, spec: &TeamSpec) -> Result<(), Failure> {
    plainly_named("a team", name, MAX_NAME)?;
    if spec.description.chars().count() > MAX_DESCRIPTION {
        let text = format!("a description has {MAX_DESCRIPTION} characters at most");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let too_long = |text: &String| text.len() > MAX_NAME_BYTES;
    if spec.members.len() > MAX_MEMBERS || spec.members.iter().any(too_long) {
        let text = format!("a team has {MAX_MEMBERS} members at most, each with a name of {MAX_NAME_BYTES} bytes");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    Ok(())
}

impl Tasks {
    /// A tenant, for whom something is submitted.
    pub fn submitter(&self, tenant: TenantId) -> Submitter {
        let name = self.tenants.name(tenant);
        let teams = self.state().teams.of.get(&name).cloned().unwrap_or_default();
        Submitter { tenant, name, teams }
    }

    /// Makes a team, or changes one of the owner's.
    pub async fn set_team(
        self: &Arc<Self>,
        owner: TenantId,
        name: String,
        mut spec: TeamSpec,
    ) -> Result<Team, Failure> {
        check_team(&name, &spec)?;
        spec.members.sort_unstable();
        spec.members.dedup();
        {
            let state = self.state();
            let own = state.teams.all.values();
            if own.filter(|team| team.owner == owner && team.name != name).count() >= MAX_TEAMS {
                let text = format!("you have {MAX_TEAMS} teams already; remove some");
                return Err(Failure::new(Code::QuotaExceeded, text));
            }
        }
        let record = TeamRecord {
            name,
            owner,
            spec,
            removed: false,
        };
        self.keep_team(record).await
    }

    async fn keep_team(self: &Arc<Self>, record: TeamRecord) -> Result<Team, Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move { tasks.keep_this_team(record).await }).await
    }

    async fn keep_this_team(&self, record: TeamRecord) -> Result<Team, Failure> {
        let owner = record.owner;
        let kept = self.store.team(record).wait().await?;
        if kept.owner != owner {
            let text = format!(
                "there is a team `{}` already, and it is another tenant's; choose another name",
                kept.name
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let shown = self.shown_team(&kept);
        self.state().teams.set(kept);
        Ok(shown)
    }

    fn shown_team(&self, team: &TeamRecord) -> Team {
        Team {
            name: team.name.clone(),
            owner: self.tenants.name(team.owner),
            spec: team.spec.clone(),
        }
    }

    /// Teams that somebody has, or is in, by name.
    pub fn teams(&self, of: TenantId) -> Vec<Team> {
        let name = self.tenants.name(of);
        let own: Vec<TeamRecord> = {
            let state = self.state();
            let among = state.teams.of.get(&name).cloned().unwrap_or_default();
            let is_its = |team: &&TeamRecord| !team.removed && (team.owner == of || among.contains(&team.name));
            state.teams.all.values().filter(is_its).cloned().collect()
        };
        let mut shown: Vec<Team> = own.iter().map(|team| self.shown_team(team)).collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown
    }

    /// Forgets a team of its owner's: what was shared with it is shared with its members no more. Its name stays its owner's.
    pub async fn remove_team(self: &Arc<Self>, owner: TenantId, name: &str) -> Result<Team, Failure> {
        let found = self.state().teams.all.get(name).cloned();
        let found = found.filter(|team| team.owner == owner && !team.removed);
        let found = found.ok_or_else(|| Failure::new(Code::NotFound, format!("you have no team `{name:.80}`")))?;
        let shown = self.shown_team(&found);
        let gone = TeamRecord {
            spec: TeamSpec::default(),
            removed: true,
            ..found
        };
        self.keep_team(gone).await?;
        Ok(shown)
    }

    /// Refuses to share with teams that there are not: whoever made them later would be let in.
    pub(super) fn check_shared(&self, shared_with: &[String]) -> Result<(), Failure> {
        bounds::check_shared(shared_with)?;
        self.state().unknown_team(shared_with).map_or(Ok(()), Err)
    }

    /// What tasks cost that ended from one time on and before another, by whole days, of one tenant or of all.
    pub async fn usage(
        &self,
        from_ms: u64,
        until_ms: u64,
        tenant: Option<TenantId>,
    ) -> Result<Vec<UsageLine>, Failure> {
        let until = day_of(until_ms.saturating_add(DAY_MS - 1));
        let used = self
            .store
            .usage(day_of(from_ms), until, tenant, MAX_LINES)
            .wait()
            .await?;
        let names: HashMap<TenantId, String> = used
            .iter()
            .map(|(key, _)| (key.tenant, self.tenants.name(key.tenant)))
            .collect();
        let state = self.state();
        let line = |(key, usage): (UsageKey, Usage)| UsageLine {
            day_ms: u64::from(key.day) * DAY_MS,
            tenant: names.get(&key.tenant).cloned().unwrap_or_default(),
            function: key.function,
            name: state.function_name(key.function),
            endpoint: state.endpoint_name(key.endpoint),
            tasks: usage.tasks,
            failed: usage.failed,
            took_ms: usage.took_us / 1000,
            cost: usage.cost,
        };
        Ok(used.into_iter().map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_which_team_follows_every_change() {
        let team = |name: &str, members: &[&str]| TeamRecord {
            name: name.into(),
            owner: TenantId([1; 16]),
            spec: TeamSpec {
                description: String::new(),
                members: members.iter().map(|member| (*member).to_owned()).collect(),
            },
            removed: false,
        };
        let mut teams = Teams::remembered(vec![team("a", &["alice", "bob"]), team("b", &["bob"])]);
        let of = |teams: &Teams, name: &str| teams.of.get(name).cloned().unwrap_or_default();
        assert_eq!(of(&teams, "alice"), ["a"]);
        assert_eq!(of(&teams, "bob")[0], "a");
        teams.set(team("a", &["carol"]));
        assert!(of(&teams, "alice").is_empty());
        assert_eq!(of(&teams, "carol"), ["a"]);
        teams.set(team("b", &[]));
        assert!(of(&teams, "bob").is_empty());
        // Nothing stays of those who are in none.
        assert_eq!(teams.of.len(), 1);
    }
}
