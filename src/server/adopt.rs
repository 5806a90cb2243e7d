//! Puts a configuration in force that was read again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::token_keys::token_keys;
use super::{Supervisor, open_files, service};
use crate::config;
use crate::limit::name::Name;
use crate::observe::events;
use crate::observe::log_interval::LogInterval;
use crate::settings::{ListenAddress, RouteSpec, Settings, UpstreamSpec};
use crate::upstream::health::UpstreamState;
use crate::worker::{ListenerCertificates, Published};

impl Supervisor {
    /// Puts a configuration in force that was read again, or logs its errors. `is_asked`: an operator has asked for it, and
    /// wants the files as they are.
    pub(super) fn adopt(&mut self, read: Result<config::Loaded, config::Problems>, is_asked: bool) {
        // A process that is ending has told the service manager, and must not report again that it is ready.
        let is_ending = self.process.draining.load(Ordering::Relaxed);
        if !is_ending {
            service::reloading();
        }
        self.put_in_force(read, is_asked);
        if !is_ending {
            service::ready();
        }
    }

    fn put_in_force(&mut self, read: Result<config::Loaded, config::Problems>, is_asked: bool) {
        let loaded = match read {
            Ok(mut loaded) => {
                loaded.warn_of_ended_certificates(self.process.wall());
                loaded
            }
            Err(problems) => {
                self.process.is_config_valid.store(false, Ordering::Relaxed);
                let errors: Vec<_> = problems.lines().collect();
                events::config_rejected(&errors);
                self.process.config.rejected(errors, self.process.wall());
                self.rejected = Some(LogInterval::from(Instant::now()));
                return;
            }
        };
        self.rejected = None;
        let old = self.published.borrow().clone();
        let mut new = loaded.settings;
        let (admin, decide) = (self.first.admin.listen, self.first.decide.listen.as_ref());
        let admin = admin.map(ListenAddress::Tcp);
        let (has_admin, has_decide) = (new.admin.listen.is_some(), new.decide.listen.is_some());
        let (of_admin, of_decide) =
            (old.settings.admin.token.as_ref(), old.settings.decide.token.as_ref());
        keep_token(admin.as_ref(), has_admin, &mut new.admin.token, of_admin);
        keep_token(decide, has_decide, &mut new.decide.token, of_decide);
        let (config, env) = (self.process.config.news(), &config::process_environment);
        let file = (&new, &loaded.text);
        let changed = config::diff((&old.settings, &config.text), file, env).changed;
        // What needs a restart keeps the values of the first settings until the end.
        let restart = config::diff((&self.first, &config.first), file, env).restart;
        let new = Arc::new(new);
        let plans = [&new, &old.settings].map(|settings| settings.plans_file());
        if let ([Some(file), Some(before)], false) = (plans, is_asked) {
            file.go_on_from(before);
        }
        for (certificates, (_, tls)) in old.certificates.iter().zip(new.listener_tls()) {
            if let (Some(certificates), Some(tls)) = (certificates, tls)
                && let Err(error) = certificates.replace(tls.files.clone(), (*tls.material).clone())
            {
                events::certificates_rejected(&error, error.advice);
            }
        }
        let new = published(new, old.certificates.clone(), Some(&old));
        self.apply(&new, Some(&old.settings));
        self.published.send_replace(new.clone());
        self.retired.push(old.settings.clone());
        events::config_reloaded(&changed, &new.settings);
        if let (Some(file), Some(before)) = (new.settings.plans_file(), old.settings.plans_file())
            && let Some(counts) = file.lost_since(before)
        {
            events::plans_loaded(&file.path().display(), counts);
        }
        loaded.warnings.lines().for_each(|warning| events::config_warning(&warning));
        if !restart.is_empty() {
            let fields: Vec<_> = restart.iter().map(|it| it.field.clone()).collect();
            events::restart_needed(&fields);
        }
        let changes = config::Changes { changed, restart };
        self.process.config.reloaded(loaded.text, changes, self.process.wall());
        self.process.tell_file();
    }

    /// Sets the parts of the process that all workers share to these settings, at the start and at each reload. The workers get
    /// the settings after this, so they find their limits. `before` are the settings in force.
    pub(super) fn apply(&mut self, new: &Published, before: Option<&Settings>) {
        let Published { settings, upstreams, .. } = new;
        let now = self.process.clock.now();
        let most = settings.server.max_connections;
        if before.is_none_or(|before| before.server.max_connections != most) {
            self.process.connections.resize(open_files::connections(settings));
        }
        self.process.throttled.configure(settings.log.throttle, settings.log.summary_interval, now);
        self.process.store.adjust(&settings.store);
        self.process.store.put_in_force(&settings.limits);
        self.log.set_level(&settings.log.level);
        self.export.send_to(settings.trace.otlp.as_ref());
        self.checks.check(settings.upstreams.iter().zip(upstreams));
        self.process.adopted.store(now.as_micros(), Ordering::Relaxed);
        self.process.is_config_valid.store(true, Ordering::Relaxed);
    }
}

/// Settings for the workers. What stays in the settings keeps its state: an upstream that of its servers, a `[jwt.NAME]` its
/// keys.
pub(super) fn published(
    settings: Arc<Settings>,
    certificates: ListenerCertificates,
    before: Option<&Published>,
) -> Arc<Published> {
    let (upstreams, keys) = (upstreams(&settings, before), token_keys(&settings, before));
    Arc::new(Published { settings, upstreams, keys, certificates })
}

/// Keeps the old token of a port if there is no new one, and other machines reach the port or the file has no `listen`
/// for it any more. Until a restart the port listens at the address of the start.
fn keep_token(
    bound: Option<&ListenAddress>,
    has_listen: bool,
    token: &mut Option<String>,
    old: Option<&String>,
) {
    if bound.is_some_and(|bound| bound.is_reached() || !has_listen) && token.is_none() {
        *token = old.cloned();
    }
}

fn upstreams(settings: &Settings, before: Option<&Published>) -> Vec<Arc<UpstreamState>> {
    let before = before.iter().flat_map(|before| &before.upstreams);
    let known: HashMap<&Name, &UpstreamState> =
        before.map(|state| (state.name(), &**state)).collect();
    let state = |(index, spec): (usize, &UpstreamSpec)| {
        let state = Arc::new(UpstreamState::new(spec, known.get(&spec.name).copied()));
        let routes = settings.routes.iter().filter(|it| it.action.upstream() == Some(index));
        let goal = |it: &RouteSpec| Some((it.name.clone(), it.options().slower_than?));
        state.queue().reload(spec, routes.filter_map(goal).collect());
        state
    };
    settings.upstreams.iter().enumerate().map(state).collect()
}
