//! Faults of a node, and its restarts.

use super::World;
use crate::client::Client;
use crate::node::{Node, PausePoint, StartFailure};
use crate::oracle::Ending;
use crate::plan::Fault;
use crate::schedule::{Event, MILLI, SECOND};

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        let scene = &mut self.scene;
        if scene.healing || self.ending {
            return;
        }
        scene.cx.log(|| format!("fault: {fault:?}"));
        let now = scene.machine.disk.operations();
        match fault {
            Fault::ClockJump => scene.machine.jump(&mut scene.cx),
            Fault::DenyWills => {
                self.plan.setup.rules.deny_wills();
                scene.oracle.wills_are_denied(
                    scene.node.as_ref().map_or(scene.stopped_at, |node| node.time(&scene.cx).0),
                );
            }
            Fault::Partition { client, time } => scene.net.part(&mut scene.cx, client, time),
            Fault::LoseConnection { client } => {
                if let Some(link) = self.clients[client].link() {
                    scene.net.lose(&mut scene.cx, link);
                }
            }
            _ if scene.node.is_none() || self.cut_at.is_some() => {}
            Fault::Cut => self.cut(),
            Fault::CutInOperation(after) => {
                self.cut_at = Some(now + after);
                scene.machine.disk.change_plan(|plan| plan.cut_at = self.cut_at);
            }
            Fault::Kill => self.kill(),
            Fault::PauseProcess { time } => {
                let Some(node) = &mut scene.node else { return };
                let until = (scene.cx.now() + time).min(self.plan.length);
                node.pause_process(&mut scene.cx, until, PausePoint::BetweenTurns);
                let began = node.time(&scene.cx).0;
                scene.oracle.node_is_paused(began, began + (until - scene.cx.now()) / MILLI);
                scene.cx.report.process_pauses += 1;
                // Data that arrives at that moment is handled first.
                let incarnation = node.incarnation();
                scene.cx.at(until + 1, Event::ReadAll { incarnation });
            }
            Fault::Stop => {
                let now = scene.cx.now();
                let Some(node) = scene.node.as_mut().filter(|node| !node.is_paused(now)) else { return };
                scene.cx.report.stops += 1;
                (self.ending, self.stopping) = (true, true);
                node.stop(&mut scene.cx, &mut scene.net);
                let (incarnation, time) = (node.incarnation(), scene.cx.between(0, 2 * SECOND));
                scene.cx.after(time, Event::End { incarnation });
            }
            Fault::Full { room, time } => {
                scene.machine.disk.set_capacity(Some(scene.machine.disk.used() + room));
                scene.cx.after(time, Event::Room);
            }
            Fault::WriteFull(after) => {
                scene.machine.disk.change_plan(|plan| plan.write_full_at = Some(now + after));
            }
            Fault::SyncFails { after, restart } => {
                self.restart_after = restart;
                scene.machine.disk.change_plan(|plan| plan.sync_fails_at = Some(now + after));
            }
        }
    }

    /// Notices a power cut in the middle of an operation, and a failed disk. The process runs until it is ended.
    pub(super) fn notice_failures(&mut self) {
        let Some(node) = &self.scene.node else { return };
        let incarnation = node.incarnation();
        let off = self.cut_at.is_some_and(|at| self.scene.machine.disk.operations() >= at);
        if self.ending || !off && node.failed().is_none() {
            return;
        }
        self.ending = true;
        let cx = &mut self.scene.cx;
        // Packets from before the power cut may still reach clients, for whom it is one moment.
        let time = if off { cx.between(0, 20 * MILLI) } else { self.restart_after };
        cx.after(time, Event::End { incarnation });
    }

    /// Ends the process.
    pub(super) fn end(&mut self, incarnation: u32) {
        if self.scene.node.as_ref().is_none_or(|node| node.incarnation() != incarnation) {
            return;
        }
        if self.cut_at.is_some_and(|at| self.scene.machine.disk.operations() >= at) {
            self.scene.cx.report.power_cuts_in_operations += 1;
            return self.cut();
        }
        if self.stopping {
            if let Some(node) = &mut self.scene.node {
                node.close();
            }
            self.dies(Ending::Stopped);
            self.scene.machine.kill();
            return self.start_soon(true);
        }
        if self.scene.cx.random.percent(60) { self.cut() } else { self.kill() }
    }

    pub(super) fn kill(&mut self) {
        self.scene.cx.report.kills += 1;
        self.dies(Ending::Died);
        self.scene.machine.kill();
        self.start_soon(true);
    }

    pub(super) fn cut(&mut self) {
        self.dies(Ending::Died);
        self.scene.cx.report.power_cuts += 1;
        self.scene.machine.cut(&mut self.scene.cx);
        self.start_soon(false);
    }

    /// Removes the process.
    fn dies(&mut self, ending: Ending) {
        let scene = &mut self.scene;
        let Some(node) = scene.node.take() else { return };
        scene.cx.log(|| format!("node: incarnation {} ends ({ending:?})", node.incarnation()));
        scene.end_incarnation(node.time(&scene.cx).0);
        scene.cx.report.retained_scans_resumed += node.walks_resumed();
        self.dropped += node.dropped();
        self.orphaned.extend(node.links().map(|link| (link, ending)));
        for (link, _) in &self.orphaned {
            scene.cx.trace.line(scene.cx.schedule.now(), || format!("node: had {link}"));
        }
        if node.failed().is_some() {
            let unanswered: usize = self.clients.iter().map(|client| client.unanswered(scene)).sum();
            scene.cx.report.check_silent_after_failure += unanswered as u64;
        }
        scene.net.lose_all(&mut scene.cx);
        self.clients.iter_mut().for_each(Client::is_served_no_more);
        // It is unknown whether the DISCONNECTs of these Wills were durable.
        self.taken_back.clear();
        (self.died_at, self.cut_at, self.ending, self.stopping) = (scene.cx.now(), None, false, false);
    }

    fn start_soon(&mut self, same_boot: bool) {
        self.same_boot = same_boot;
        let cx = &mut self.scene.cx;
        let time = if self.scene.healing { 10 * MILLI } else { cx.between(10 * MILLI, 4 * SECOND) };
        cx.after(time, Event::Start);
    }

    pub(super) fn start(&mut self) {
        let scene = &mut self.scene;
        if scene.node.is_some() {
            return;
        }
        scene.machine.count(&mut scene.cx);
        if self.incarnations > 0 && !scene.healing && scene.cx.random.percent(15) {
            let cut_at = scene.machine.disk.operations() + 1 + scene.cx.random.draw() % 12;
            scene.machine.disk.change_plan(|plan| plan.cut_at = Some(cut_at));
            self.cut_at = Some(cut_at);
        }
        let setup = self.plan.setup.clone();
        match Node::start(&mut scene.cx, &mut scene.machine, setup, self.incarnations) {
            Ok(node) => scene.node = Some(node),
            Err(StartFailure::Disk) => {
                let off = self.cut_at.take().is_some_and(|at| scene.machine.disk.operations() >= at);
                scene.cx.report.power_cuts_at_start += u64::from(off);
                scene.machine.cut(&mut scene.cx);
                return self.start_soon(false);
            }
            Err(StartFailure::Outdated) => unreachable!("a single node has no meta group"),
            Err(StartFailure::Broken(why)) => panic!("the node does not start: {why}"),
        }
        self.incarnations += 1;
        self.begins();
    }

    /// Begins an incarnation: all earlier connections have ended by now.
    fn begins(&mut self) {
        let scene = &mut self.scene;
        let began = scene.time();
        scene.cx.log(|| format!("node: incarnation {} begins at its time {began}", self.incarnations));
        if self.incarnations > 1 {
            self.check_clock(began);
        }
        let scene = &mut self.scene;
        for client in &mut self.clients {
            client.survives_death(scene.stopped_at, began);
        }
        for (link, ending) in std::mem::take(&mut self.orphaned) {
            scene.oracle.will_ends(link, ending, began);
            if let Some(client) = scene.net.client_of(link).and_then(|client| self.clients.get_mut(client)) {
                client.served_until(began, began);
            }
        }
        scene.oracle.wills_wait_from(scene.stopped_at, began);
    }

    /// Asserts that the node's time includes the time in which it did not run, as far as it can know that.
    fn check_clock(&mut self, began: u64) {
        let (stopped_at, report) = (self.scene.stopped_at, &mut self.scene.cx.report);
        let away = (self.scene.cx.schedule.now() - self.died_at) / MILLI;
        if self.same_boot {
            assert!(
                began.abs_diff(stopped_at + away) <= 20,
                "{stopped_at} ms, {away} ms later, is {began} ms"
            );
        }
        let day = 24 * 3600 * 1000;
        assert!(began <= stopped_at + away + day + 20, "{stopped_at} ms, {away} ms later, is {began} ms");
        report.check_clock += 1;
    }
}
