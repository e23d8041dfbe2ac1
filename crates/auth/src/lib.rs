//! Access control: decides who may connect and what they may do, with password files, access rules, bans, and the
//! threads that hash passwords.
//!
//! [`Guard`] answers the broker's requests ([`access::Access`]); read it first. It reads mosquitto's password
//! files (`$7$`) and ACL files as they are. `scram` is the one enhanced authentication. The node's start decides which
//! addresses may be open without access control, not this crate.
//!
//! **Invariant:** a request on a reactor is answered from memory, without computing a password hash and without waiting
//! for one. **Invariant:** access that cannot be decided is refused.

#![forbid(unsafe_code)]

mod acl;
mod authority;
mod bans;
mod certificate;
mod chain;
mod error;
mod grants;
mod guard;
mod json;
mod jwt;
mod link;
mod mountpoint;
mod opinion;
mod password_file;
mod password_hash;
mod protection;
mod recent;
mod rule;
mod rule_table;
mod rules;
mod scram;
mod users;
mod web;

pub mod settings;

pub use acl::{Acl, Decision, Subject, SubscribeRule, Why};
pub use authority::{
    Authority, Decider, DecisionFigures, Explanation, NoMatch, Source, SourceName, SourceNames, Sources, Step,
};
pub use bans::{
    Ban, BanError, BanId, BanKind, BanTarget, Bans, BansFault, BansFileError, BansImportError, Net, NetError,
    NewBan, Pattern, REASON_MAX, VALUE_MAX, ValueError,
};
pub use chain::LinkFigures;
pub use error::{Fault, FileError};
pub use guard::{Figures, Guard, GuardChange, HashingBusy, LoginLimit, OpenError, PolicyError};
pub use jwt::{JwksFigures, JwtChange, JwtError, JwtFigures, JwtLink};
pub use link::{Attempt, CacheKey, Decoy, Link, Outcome, ScramRecord, ScramSource, Threads};
pub use opinion::Opinion;
pub use password_file::{PasswordFile, PasswordFileEdit};
pub use password_hash::{
    PasswordHash, SCRAM_ITERATIONS, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN, ScramError, ScramKeys,
};
pub use protection::ProtectionFigures;
pub use rule_table::{Authorship, NewRule, RuleId, RuleTable, RuleTableError, STORED_RULES_MAX, StoredRule};
pub use rules::{AccessRule, RULES_MAX, RuleError, RuleFault, RuleLocation, RuleSet, Ruling, RulingReason};
pub use users::{
    Connected, Existing, Imported, RatesRecord, USER_NAME_MAX, UserError, UserRecord, Users, hash_password,
};
pub use web::{
    AclChange, Circuit, HttpAcl, HttpLink, HttpServices, LinkChange, ServiceError, ServiceFailures,
    ServiceFigures, ServicesChange,
};
