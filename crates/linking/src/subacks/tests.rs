use broker::{Ticket, WorkerId};
use mqtt::PacketId;
use random::Random;

use super::*;

const WITHIN: Duration = Duration::from_secs(5);

fn suback(slot: u32, packet_id: u16) -> WaitingSuback {
    let connection = ConnectionId { worker: WorkerId(0), slot, generation: 0 };
    WaitingSuback { connection, ticket: Ticket::of(PacketId::new(packet_id).expect("not 0")) }
}

fn filters(texts: &[&str]) -> Vec<Box<str>> {
    texts.iter().map(|text| Box::from(*text)).collect()
}

fn link(session: &str, texts: &[&str]) -> (String, Vec<Box<str>>) {
    (session.to_owned(), filters(texts))
}

/// Returns what is to be done, and checks the invariants.
fn outputs(subacks: &mut Subacks) -> Vec<Output> {
    subacks.check_invariants();
    std::iter::from_fn(|| subacks.poll_output()).collect()
}

fn asked(subacks: &mut Subacks) -> Vec<(u64, String, usize)> {
    let asked = outputs(subacks).into_iter().map(|output| match output {
        Output::Ask { number, session, parts } => (number, session, parts.len()),
        Output::Done { .. } => panic!("{output:?}"),
    });
    asked.collect()
}

fn done(suback: WaitingSuback, is_confirmed: bool) -> Output {
    Output::Done { suback, is_confirmed }
}

#[test]
fn a_suback_waits_for_each_link_that_takes_a_filter() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    subacks.begin(now, suback(1, 1), WITHIN, Vec::new());
    assert_eq!(outputs(&mut subacks), [done(suback(1, 1), true)], "no link takes it");
    subacks.begin(now, suback(1, 2), WITHIN, vec![link("$linked/b", &["x"]), link("$linked/c", &["x", "y"])]);
    let questions = asked(&mut subacks);
    assert_eq!(questions.len(), 2);
    subacks.answered(now, questions[0].0, Answer::Parts(vec![true]));
    assert!(outputs(&mut subacks).is_empty());
    subacks.answered(now, questions[1].0, Answer::Parts(vec![true]));
    assert_eq!(outputs(&mut subacks), [done(suback(1, 2), true)]);
    assert_eq!((subacks.timeout(), subacks.waiting()), (None, 0));
}

#[test]
fn what_is_not_answered_is_asked_for_again_until_the_time_is_over() {
    let (mut subacks, mut now) = (Subacks::default(), Instant::now());
    let until = now + WITHIN;
    subacks.begin(now, suback(1, 1), WITHIN, vec![link("$linked/b", &["x"])]);
    let mut answers =
        [Answer::Lost, Answer::Parts(vec![false]), Answer::Parts(Vec::new())].into_iter().cycle();
    let mut rounds = 0;
    loop {
        let mut questions = asked(&mut subacks);
        let (number, ..) = questions.pop().expect("it is asked for again");
        subacks.answered(now, number, answers.next().expect("endless"));
        assert!(outputs(&mut subacks).is_empty(), "not at once");
        now = subacks.timeout().expect("again");
        subacks.handle_timeout(now);
        rounds += 1;
        if now == until {
            break;
        }
    }
    assert_eq!(outputs(&mut subacks), [done(suback(1, 1), false)]);
    assert!(rounds > 10);
    subacks.begin(now, suback(1, 2), WITHIN, vec![link("$linked/b", &["x"])]);
    let (number, ..) = asked(&mut subacks)[0];
    subacks.handle_timeout(now + WITHIN);
    assert_eq!(outputs(&mut subacks), [done(suback(1, 2), false)], "while a question is open");
    subacks.answered(now, number, Answer::Parts(vec![true]));
    assert!(outputs(&mut subacks).is_empty(), "the answer is late");
}

#[test]
fn a_node_of_an_earlier_version_makes_nobody_wait() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    subacks.begin(now, suback(1, 1), WITHIN, vec![link("$linked/b", &["x"])]);
    let (number, ..) = asked(&mut subacks)[0];
    subacks.answered(now, number, Answer::Unsupported);
    assert_eq!(outputs(&mut subacks), [done(suback(1, 1), true)]);
}

#[test]
fn many_subacks_share_questions() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    for slot in 0..1_000 {
        subacks.begin(now, suback(slot, 1), WITHIN, vec![link("$linked/b", &["x"])]);
    }
    let mut questions = VecDeque::from(asked(&mut subacks));
    assert_eq!(questions.len(), OPEN_MAX, "the others wait for an answer");
    let (mut confirmed, mut count) = (0, 0);
    while let Some((number, _, parts)) = questions.pop_front() {
        count += 1;
        subacks.answered(now, number, Answer::Parts(vec![true; parts]));
        for output in outputs(&mut subacks) {
            match output {
                Output::Ask { number, session, parts } => questions.push_back((number, session, parts.len())),
                Output::Done { is_confirmed, .. } => confirmed += u32::from(is_confirmed),
            }
        }
    }
    assert_eq!((confirmed, count), (1_000, 8));
}

#[test]
fn a_large_subscribe_has_several_parts() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    let long = "x".repeat(60_000);
    let texts = [&*long, "a", "b", &*long];
    subacks.begin(now, suback(1, 1), WITHIN, vec![link("$linked/b", &texts)]);
    let questions = asked(&mut subacks);
    assert_eq!(questions.iter().map(|(.., parts)| parts).sum::<usize>(), 3);
    for (at, (number, _, parts)) in questions.iter().enumerate() {
        assert!(outputs(&mut subacks).is_empty(), "{at}");
        subacks.answered(now, *number, Answer::Parts(vec![true; *parts]));
    }
    assert_eq!(outputs(&mut subacks), [done(suback(1, 1), true)]);
}

#[test]
fn there_is_a_limit_and_closed_connections_do_not_count() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    let begin = |subacks: &mut Subacks, slot| {
        subacks.begin(now, suback(slot, 1), WITHIN, vec![link("$linked/b", &["x"])]);
    };
    (0..WAITS_MAX as u32).for_each(|slot| begin(&mut subacks, slot));
    outputs(&mut subacks);
    let beyond = WAITS_MAX as u32;
    begin(&mut subacks, beyond);
    assert_eq!(outputs(&mut subacks), [done(suback(beyond, 1), false)]);
    subacks.cancel(suback(7, 1).connection);
    begin(&mut subacks, beyond);
    assert!(outputs(&mut subacks).is_empty());
    assert_eq!(subacks.waiting(), WAITS_MAX);
    let long = "x".repeat(60_000);
    (0..WAITS_MAX as u32 + 1).for_each(|slot| subacks.cancel(suback(slot, 1).connection));
    for slot in 0..=(BYTES_MAX / 60_000) as u32 {
        subacks.begin(now, suback(slot, 1), WITHIN, vec![link("$linked/b", &[&long])]);
    }
    let is_refused = |output: &Output| matches!(output, Output::Done { is_confirmed: false, .. });
    assert!(outputs(&mut subacks).iter().any(is_refused));
}

/// Whatever is answered, closed and late: each SUBACK is sent once, unless its connection is closed.
#[test]
fn each_suback_has_one_end() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut subacks, mut now) = (Subacks::default(), Instant::now());
        let mut open: Vec<(u64, usize)> = Vec::new();
        let mut waiting: HashMap<(u32, u16), bool> = HashMap::new();
        let mut ended = 0;
        for packet_id in 1..200 {
            match random.below(5) {
                0 | 1 => {
                    let slot = random.below(5) as u32;
                    let sessions = ["$linked/b", "$linked/c", "$linked/d"];
                    let count = random.below(4);
                    let links = sessions[..count].iter().map(|session| link(session, &["x"])).collect();
                    waiting.insert((slot, packet_id), true);
                    subacks.begin(now, suback(slot, packet_id), WITHIN, links);
                }
                2 if !open.is_empty() => {
                    let (number, parts) = open.swap_remove(random.below(open.len()));
                    let answer = match random.below(4) {
                        0 => Answer::Lost,
                        _ => Answer::Parts((0..parts).map(|_| random.percent(70)).collect()),
                    };
                    subacks.answered(now, number, answer);
                }
                3 => {
                    now += Duration::from_millis(random.below(700) as u64);
                    subacks.handle_timeout(now);
                }
                _ => {
                    let slot = random.below(20) as u32;
                    subacks.cancel(suback(slot, 1).connection);
                    waiting.retain(|(of, _), _| *of != slot);
                }
            }
            for output in outputs(&mut subacks) {
                match output {
                    Output::Ask { number, parts, .. } => open.push((number, parts.len())),
                    Output::Done { suback, .. } => {
                        let key =
                            (suback.connection.slot, suback.ticket.packet_id().expect("a client's").get());
                        assert!(waiting.remove(&key).is_some(), "seed {seed}: {key:?} waits");
                        ended += 1;
                    }
                }
            }
            assert_eq!(subacks.waiting(), waiting.len(), "seed {seed}");
        }
        subacks.end_all();
        assert_eq!(outputs(&mut subacks).len(), waiting.len());
        assert!(ended > 10, "seed {seed}");
    }
}

/// One client must not take the room of all others.
#[test]
fn the_filters_of_a_connection_that_wait_are_bounded() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    let large = "x".repeat(CONNECTION_BYTES_MAX / 2 - EACH);
    let begin = |subacks: &mut Subacks, slot, packet_id| {
        subacks.begin(now, suback(slot, packet_id), WITHIN, vec![link("$linked/b", &[&large])]);
    };
    begin(&mut subacks, 1, 1);
    begin(&mut subacks, 1, 2);
    assert_eq!(asked(&mut subacks).len(), 2, "they fit");
    begin(&mut subacks, 1, 3);
    assert_eq!(outputs(&mut subacks), [done(suback(1, 3), false)]);
    begin(&mut subacks, 2, 1);
    assert_eq!(asked(&mut subacks).len(), 1, "another client is not concerned");
    subacks.cancel(suback(1, 1).connection);
    begin(&mut subacks, 1, 4);
    assert_eq!((asked(&mut subacks).len(), subacks.waiting()), (1, 2));
}

/// Requests of operators between the nodes have the other places.
#[test]
fn links_take_turns_with_few_questions_at_a_time() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    let sessions: Vec<String> = (0..12).map(|number| format!("$linked/{number:02}")).collect();
    for slot in 0..4_000 {
        let links = sessions.iter().map(|session| link(session, &["x"])).collect();
        subacks.begin(now, suback(slot, 1), WITHIN, links);
    }
    let mut questions = VecDeque::from(asked(&mut subacks));
    assert_eq!(questions.len(), OPEN_TOTAL_MAX);
    let mut turns: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..sessions.len() {
        let (number, session, _) = questions.pop_front().expect("a question");
        *turns.entry(session).or_default() += 1;
        subacks.answered(now, number, Answer::Lost);
        questions.extend(asked(&mut subacks));
        assert_eq!(questions.len(), OPEN_TOTAL_MAX);
    }
    assert_eq!(turns.len(), sessions.len(), "each link had a turn: {turns:?}");
}

/// A client may subscribe and leave again and again.
#[test]
fn filters_of_closed_connections_do_not_stay() {
    let (mut subacks, now) = (Subacks::default(), Instant::now());
    for slot in 0..OPEN_MAX as u32 {
        subacks.begin(now, suback(slot, 1), WITHIN, vec![link("$linked/b", &["x"])]);
    }
    assert_eq!(asked(&mut subacks).len(), OPEN_MAX, "the link does not answer");
    let long = "x".repeat(60_000);
    for slot in 100..1_000 {
        subacks.begin(now, suback(slot, 1), WITHIN, vec![link("$linked/b", &[&long])]);
        subacks.cancel(suback(slot, 1).connection);
    }
    let filters: usize =
        subacks.waits.values().flat_map(|wait| &wait.parts).map(|part| part.filters.len()).sum();
    assert_eq!((filters, subacks.bytes), (OPEN_MAX, OPEN_MAX * (1 + EACH)));
}
