//! Conversion of the file to the work of each group: one [`Plan`] each.

use super::file::{File, GroupFile, Rate, StageFile, WillFile};
use super::values::Load;
use crate::config::SetupError;
use crate::pace::{Curve, Pace};
use crate::plain::Headers;
use crate::plan::{
    Attempts, Churn, Clients, Kind, Message, Messages, Output, Plan, Presence, Schedule, SessionPlan, Span,
    Target, Tls, with_ports,
};
use crate::properties::{Properties, Will};
use crate::secret::Secret;
use crate::template::{Placeholders, Template};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A scenario that can be run.
pub struct Scenario {
    pub title: String,
    pub stages: Vec<StageFile>,
    pub groups: Vec<Group>,
}

pub struct Group {
    pub name: String,
    pub plan: Plan,
    /// Messages per second that each stage requests, where a rate is set.
    pub target_rates: Vec<Option<f64>>,
}

const STAGES_MAX: usize = 32;
const GROUPS_MAX: usize = 32;
const CLIENTS_MAX: usize = 1_000_000;
/// Maximum length of a stage in seconds: a week.
const SECONDS_MAX: u64 = 604_800;

/// Command line options that override the file.
pub struct CommandLineOverrides {
    /// Hosts that replace those of the file.
    pub hosts: Vec<String>,
    pub output: Output,
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid, with the reason.
    pub fn read(path: &Path, overrides: &CommandLineOverrides) -> Result<Scenario, SetupError> {
        let text = std::fs::read_to_string(path).map_err(|error| SetupError::file(path, &error))?;
        let wrong = |why: String| SetupError::Scenario(format!("{}: {why}", path.display()));
        let file: File = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let here = path.parent().unwrap_or(Path::new("."));
        Scenario::new(file, here, overrides).map_err(wrong)
    }

    fn new(file: File, here: &Path, overrides: &CommandLineOverrides) -> Result<Scenario, String> {
        if !(1..=STAGES_MAX).contains(&file.stage.len()) || !(1..=GROUPS_MAX).contains(&file.group.len()) {
            return Err(format!(
                "it has {} [[stage]] and {} [[group]]: 1 to {STAGES_MAX} and 1 to {GROUPS_MAX} are needed",
                file.stage.len(),
                file.group.len()
            ));
        }
        for stage in &file.stage {
            if !(1..=SECONDS_MAX).contains(&stage.seconds) {
                return Err(format!("stage {}: seconds is 1 to {SECONDS_MAX}", stage.name));
            }
        }
        unique(file.stage.iter().map(|stage| &stage.name), "stage")?;
        unique(file.group.iter().map(|group| &group.name), "group")?;
        let seed = file.seed.unwrap_or_else(crate::net::now);
        let mut groups = vec![];
        for (number, group) in file.group.iter().enumerate() {
            let seed = seed.wrapping_add(number as u64);
            let read = one(&file, group, here, overrides, seed)
                .map_err(|why| format!("group {}: {why}", group.name))?;
            groups.push(read);
        }
        let title = file.title.unwrap_or_else(|| "scenario".to_owned());
        Ok(Scenario { title, stages: file.stage, groups })
    }

    /// Index of the stage at a moment, in seconds from the start.
    pub fn stage_at(&self, seconds: f64) -> usize {
        let mut end = 0;
        let past = |stage: &StageFile| {
            end += stage.seconds;
            seconds >= end as f64
        };
        let passed = self.stages.iter().map(past).take_while(|past| *past).count();
        passed.min(self.stages.len() - 1)
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a String>, what: &str) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("two {what}s are named {name}"));
        }
    }
    Ok(())
}

fn one(
    file: &File,
    group: &GroupFile,
    here: &Path,
    overrides: &CommandLineOverrides,
    seed: u64,
) -> Result<Group, String> {
    if !(1..=CLIENTS_MAX).contains(&group.clients) {
        return Err(format!("clients is 1 to {CLIENTS_MAX}"));
    }
    let version = group.version.or(file.version).unwrap_or(5);
    if !(3..=5).contains(&version) {
        return Err("version is 3 (3.1), 4 (3.1.1) or 5".to_owned());
    }
    if group.connect_rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e6)) {
        return Err("connect_rate is connections a second, more than 0".to_owned());
    }
    let kind = match (&group.publish, group.subscribe.is_empty()) {
        (Some(_), _) => Kind::Pub,
        (None, false) => Kind::Sub,
        (None, true) => Kind::Conn,
    };
    let (qos, also_qos) = (qos(group.qos)?, qos(group.subscribe_qos)?);
    let headers = Headers::parse(group.headers.as_deref().unwrap_or("tsns"))?;
    let stages = Stages::new(&file.stage, group)?;
    let (pace, target_rates) = stages.pace(group)?;
    let base = Plan::base(kind);
    let clients = Clients {
        count: group.clients,
        id: group.client_id.clone().unwrap_or_else(|| format!("{}-{:08x}-%i", group.name, seed as u32)),
        username: group.username.clone().or_else(|| file.username.clone()),
        password: password(group.password_file.as_ref().or(file.password_file.as_ref()), here)?,
        ..base.clients
    };
    let target = Target {
        hosts: hosts(file, group, overrides),
        tls: file.tls.as_ref().map(|tls| Tls {
            ca: tls.ca.as_ref().map(|path| here.join(path)),
            certificate: tls.certificate.as_ref().map(|path| here.join(path)),
            key: tls.key.as_ref().map(|path| here.join(path)),
            insecure: tls.insecure,
            version: None,
            alpn: vec![],
        }),
        websocket: file.websocket.clone(),
        ..Target::default()
    };
    let session = SessionPlan {
        version,
        keepalive: group.keepalive.unwrap_or(60),
        clean: group.clean.unwrap_or(true),
        expiry: group.session_expiry.unwrap_or(0),
        will: group.will.as_ref().map(will),
        ..base.session
    };
    let connecting = Attempts {
        rate: group.connect_rate.unwrap_or(0.0),
        reconnects: group.reconnects.unwrap_or(0),
        ..base.connecting
    };
    let messages = Messages {
        inflight: group.window.unwrap_or(1).clamp(1, 60_000),
        headers,
        retain: group.retain,
        ..base.messages
    };
    let schedule = Schedule { pace, seed, together: true, span: Some(stages.span()), ..base.schedule };
    let presence = Presence { churn: churn(group)?, vanish: group.vanish };
    let output = Output { threads: overrides.output.threads, processes: 1, quiet: true, ..Output::default() };
    let mut plan = Plan {
        clients,
        target,
        session,
        connecting,
        messages,
        schedule,
        presence,
        output,
        kind,
        also: base.also,
    };
    match &group.publish {
        Some(topic) if topic.contains(['#', '+']) => {
            return Err(format!("publish = {topic:?}: a Topic Name has no wildcards"));
        }
        Some(topic) => {
            plan.messages.topics = vec![topic.clone()];
            plan.messages.qos = qos;
            plan.also.topics = group.subscribe.clone();
            plan.also.qos = also_qos;
            plan.messages.size = group.size.unwrap_or(256);
            plan.messages.message = message(group, here, plan.messages.size)?;
        }
        None => {
            let unused = [
                ("payload", group.payload.is_some() || group.payload_file.is_some() || group.size.is_some()),
                ("rate", group.rate.is_some()),
                ("think", group.think.is_some()),
                ("qos", group.qos.is_some()),
                ("retain", group.retain),
            ];
            if let Some((name, _)) = unused.iter().find(|(_, there)| *there) {
                return Err(format!("{name} is of no use without publish = \"TOPIC\""));
            }
            plan.messages.topics = group.subscribe.clone();
            plan.messages.qos = also_qos;
        }
    }
    // Invalid topics and payloads are reported before any connection.
    plan.config().map_err(|error| error.to_string())?;
    Ok(Group { name: group.name.clone(), plan, target_rates })
}

fn hosts(file: &File, group: &GroupFile, overrides: &CommandLineOverrides) -> Vec<String> {
    let hosts = match (&group.hosts, overrides.hosts.is_empty()) {
        (Some(hosts), true) => hosts.clone(),
        (_, false) => overrides.hosts.clone(),
        (None, true) if file.hosts.is_empty() => vec!["localhost".to_owned()],
        (None, true) => file.hosts.clone(),
    };
    let port = match (file.tls.is_some(), file.websocket.is_some()) {
        (false, false) => 1883,
        (true, false) => 8883,
        (false, true) => 8083,
        (true, true) => 8084,
    };
    with_ports(&hosts, port)
}

fn qos(qos: Option<u8>) -> Result<u8, String> {
    match qos.unwrap_or(0) {
        qos @ 0..=2 => Ok(qos),
        other => Err(format!("there is no QoS {other}")),
    }
}

fn password(path: Option<&PathBuf>, here: &Path) -> Result<Option<Secret>, String> {
    let Some(path) = path else { return Ok(None) };
    let path = here.join(path);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("password_file {}: {error}", path.display()))?;
    Ok(Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned())))
}

fn will(will: &WillFile) -> Will {
    Will {
        topic: will.topic.clone(),
        payload: will.message.clone().into_bytes(),
        qos: will.qos,
        retain: will.retain,
        delay: will.delay,
        properties: Properties::default(),
    }
}

fn churn(group: &GroupFile) -> Result<Option<Churn>, String> {
    match (group.stay, group.away) {
        (None, None) if group.vanish => Err("vanish is of no use without stay".to_owned()),
        (None, None) => Ok(None),
        (Some(stay), away) if stay.1 >= Duration::from_millis(10) => {
            let away = away.map_or((Duration::ZERO, Duration::from_secs(1)), |away| (away.0, away.1));
            Ok(Some(Churn { stay: (stay.0, stay.1), away }))
        }
        (Some(_), _) => Err("stay is 10ms or more".to_owned()),
        (None, Some(_)) => Err("away is of no use without stay".to_owned()),
    }
}

fn message(group: &GroupFile, here: &Path, size: usize) -> Result<Option<Message>, String> {
    let text = match (&group.payload, &group.payload_file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("payload or payload_file, not both".to_owned()),
        (Some(text), None) => text.clone(),
        (None, Some(path)) => {
            let path = here.join(path);
            std::fs::read_to_string(&path)
                .map_err(|error| format!("payload_file {}: {error}", path.display()))?
        }
    };
    Template::parse(&text, Placeholders::All { size }).map(|template| Some(Message::Generated(template)))
}

/// The stages of one group.
struct Stages<'a> {
    all: &'a [StageFile],
    /// Index of its first and of its last stage.
    join: usize,
    leave: usize,
}

impl Stages<'_> {
    fn new<'a>(all: &'a [StageFile], group: &GroupFile) -> Result<Stages<'a>, String> {
        let stage_index = |name: &Option<String>, other| match name {
            None => Ok(other),
            Some(name) => find(all, name),
        };
        let (join, leave) = (stage_index(&group.join, 0)?, stage_index(&group.leave, all.len() - 1)?);
        if join > leave {
            return Err("it leaves before it joins".to_owned());
        }
        Ok(Stages { all, join, leave })
    }

    fn span(&self) -> Span {
        let until = |stage| Duration::from_secs(self.all[..stage].iter().map(|stage| stage.seconds).sum());
        Span { join: until(self.join), leave: until(self.leave + 1) }
    }

    /// The schedule of the group, and the mean rate that each stage requests.
    fn pace(&self, group: &GroupFile) -> Result<(Pace, Vec<Option<f64>>), String> {
        let nothing = vec![None; self.all.len()];
        match (&group.rate, group.think, &group.publish) {
            (Some(_), Some(_), _) => Err("rate or think, not both".to_owned()),
            (None, None, Some(_)) => {
                Err("a group that publishes needs a rate (messages a second) or think (a pause)".to_owned())
            }
            (None, None, None) => Ok((Pace::default(), nothing)),
            (None, Some(think), _) if think.1.is_zero() => Err("think is more than 0".to_owned()),
            (None, Some(think), _) => Ok((Pace::Think(think.0, think.1), nothing)),
            (Some(rate), None, _) => {
                if let Rate::Staged(stages) = rate {
                    stages.keys().try_for_each(|name| find(self.all, name).map(|_| ()))?;
                }
                let mut curve = Curve::default();
                let mut target_rates = vec![];
                for (number, stage) in self.all.iter().enumerate() {
                    let load = match rate {
                        _ if number < self.join || number > self.leave => Load(0.0, 0.0),
                        Rate::Always(load) => *load,
                        Rate::Staged(stages) => stages.get(&stage.name).copied().unwrap_or(Load(0.0, 0.0)),
                    };
                    let each = 1.0 / group.clients as f64;
                    curve.then(stage.seconds as f64, (load.0 * each, load.1 * each));
                    target_rates.push(Some((load.0 + load.1) / 2.0));
                }
                Ok((Pace::Curve(curve), target_rates))
            }
        }
    }
}

fn find(stages: &[StageFile], name: &str) -> Result<usize, String> {
    stages.iter().position(|stage| stage.name == *name).ok_or_else(|| {
        let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        format!("there is no stage {name}: it is one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Side;

    fn scenario(groups: &str) -> Result<Scenario, String> {
        let stages = "[[stage]]\nname = \"one\"\nseconds = 10\n[[stage]]\nname = \"two\"\nseconds = 20\n";
        let file: File =
            toml::from_str(&format!("hosts = [\"127.0.0.1\"]\nseed = 1\n{stages}{groups}")).unwrap();
        Scenario::new(
            file,
            Path::new("."),
            &CommandLineOverrides { hosts: vec![], output: Output::default() },
        )
    }

    const SENSORS: &str = "[[group]]\nname = \"sensors\"\nclients = 4\npublish = \"a/%i\"\n";

    fn due(group: &Group, seconds: f64) -> f64 {
        match &group.plan.schedule.pace {
            Pace::Curve(curve) => curve.due_by(seconds) * group.plan.clients.count as f64,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rate_is_that_of_the_whole_group_while_it_is_connected() {
        let group = |rest: &str| scenario(&format!("{SENSORS}{rest}")).unwrap().groups.remove(0);
        let staged = group("rate = { one = 100, two = \"0..100\" }");
        assert_eq!((due(&staged, 10.0), due(&staged, 30.0)), (1000.0, 2000.0));
        assert_eq!(staged.target_rates, [Some(100.0), Some(50.0)]);
        let late = group("rate = 8\njoin = \"two\"");
        assert_eq!((due(&late, 10.0), due(&late, 30.0)), (0.0, 160.0));
        let seconds = Duration::from_secs;
        assert_eq!(late.plan.schedule.span, Some(Span { join: seconds(10), leave: seconds(30) }));
        let early = group("rate = 8\nleave = \"one\"");
        assert_eq!(early.plan.schedule.span, Some(Span { join: seconds(0), leave: seconds(10) }));
        assert_eq!(due(&early, 30.0), 80.0);
    }

    #[test]
    fn a_missing_value_is_that_of_the_file_or_the_default() {
        let all =
            scenario(&format!("{SENSORS}think = 1\n[[group]]\nname = \"idle\"\nclients = 1\n")).unwrap();
        let (sensors, idle) = (&all.groups[0].plan, &all.groups[1].plan);
        assert_eq!((sensors.kind, idle.kind), (Kind::Pub, Kind::Conn));
        assert_eq!(
            (sensors.target.hosts.as_slice(), sensors.session.version),
            (&["127.0.0.1:1883".to_owned()][..], 5)
        );
        assert_eq!((sensors.messages.size, sensors.messages.headers.len()), (256, 8));
        assert_eq!(sensors.schedule.pace, Pace::Think(Duration::from_secs(1), Duration::from_secs(1)));
        assert_ne!(sensors.schedule.seed, idle.schedule.seed);
    }

    #[test]
    fn a_group_may_have_a_will() {
        let group = |rest: &str| scenario(&format!("{SENSORS}rate = 1\n{rest}"));
        let will = "will = { topic = \"gone/%c\", message = \"bye\", qos = 1, retain = true, delay = 3 }\n";
        let with = group(&format!("stay = 1\nvanish = true\n{will}")).unwrap().groups.remove(0).plan;
        assert!(with.presence.vanish);
        let config = with.config().unwrap();
        let will_topic = config.will_topic(Side::Publisher, 1);
        assert_eq!(will_topic, format!("gone/{}", config.client_id(Side::Publisher, 1)));
        let found = with.session.will.unwrap();
        assert_eq!((&found.payload[..], found.qos, found.retain, found.delay), (&b"bye"[..], 1, true, 3));
        for (wrong, why) in [
            ("vanish = true\n", "without stay"),
            ("will = { topic = \"a/#\" }\n", "not a topic for a Will"),
            ("will = { topic = \"a\", qos = 3 }\n", "no QoS 3"),
            ("version = 4\nwill = { topic = \"a\", delay = 1 }\n", "MQTT 5.0"),
        ] {
            let refused = group(wrong).map(|_| ()).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
    }

    #[test]
    fn every_moment_belongs_to_a_stage() {
        let all = scenario(&format!("{SENSORS}rate = 1\n")).unwrap();
        let stages = [0.0, 9.9, 10.0, 29.9, 30.0, 1e9].map(|seconds| all.stage_at(seconds));
        assert_eq!(stages, [0, 0, 1, 1, 1, 1]);
    }
}
