//! Finds the limits that hold requests together.

use super::{LimitSpec, RouteSpec};
use crate::limit::Mode;
use crate::limit::waiting::{MaxWait, WaitingLine};

/// Gives one waiting line to the limits that hold requests and are always asked together: they are on the same
/// routes, count by the same key, and have the same scope and exemptions.
///
/// Other limits stay without a line. With a common line, a request that one limit holds for long would also hold up
/// requests of other routes and other keys.
pub(crate) fn find_lines(limits: &mut [LimitSpec], routes: &[RouteSpec], no_route: &RouteSpec) {
    let mut used: Vec<Vec<usize>> = vec![Vec::new(); limits.len()];
    for (number, route) in routes.iter().chain([no_route]).enumerate() {
        for place in &route.limits {
            let place = usize::try_from(*place).ok();
            if let Some(used) = place.and_then(|place| used.get_mut(place)) {
                used.push(number);
            }
        }
    }
    let mut next = 1;
    let mut rest =
        limits.iter_mut().zip(used).filter(|(limit, _)| may_share(limit)).collect::<Vec<_>>();
    while let Some((limit, used)) = rest.pop() {
        let Some(line) = WaitingLine::new(next) else { return };
        let same = |(other, others): &&mut (&mut LimitSpec, Vec<usize>)| {
            *others == used
                && other.key == limit.key
                && other.scope == limit.scope
                && other.exempt == limit.exempt
        };
        for (other, _) in rest.iter_mut().filter(same) {
            other.line = Some(line);
            limit.line = Some(line);
        }
        rest.retain(|(limit, _)| limit.line.is_none());
        next += u16::from(limit.line.is_some());
    }
}

/// Whether the limit holds requests.
pub(crate) fn holds(limit: &LimitSpec) -> bool {
    limit.mode == Mode::Enforce && limit.wait > MaxWait::NONE
}

/// Whether the limit can hold a request for longer than its own figures demand. A Redisson limiter cannot, because
/// other services write to it too.
fn may_share(limit: &LimitSpec) -> bool {
    holds(limit) && limit.limiter.is_none()
}

#[cfg(test)]
mod tests {
    use crate::config::{Overrides, parse};
    use crate::plan::Plan;

    /// Two limits with these lines, and a third one by another key. `second` is what the second route uses.
    fn plan(one: &str, two: &str, second: &str) -> Plan {
        let text = format!(
            "[upstreams.api]\nservers = [\"http://a\"]\n\
             [limits.one]\nkey = [\"ip\"]\nrate = \"1/s\"\n{one}\n\
             [limits.two]\nkey = [\"ip\"]\nrate = \"10/m\"\n{two}\n\
             [limits.three]\nrate = \"100/h\"\nwait = \"1s\"\n\
             [[routes]]\npath = \"/a\"\nupstream = \"api\"\nlimits = [\"one\", \"two\", \"three\"]\n\
             [[routes]]\npath = \"/b\"\nupstream = \"api\"\nlimits = {second}\n"
        );
        parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan
    }

    #[test]
    fn only_limits_that_are_always_asked_together_have_a_line() {
        const BOTH: &str = "[\"two\", \"one\"]";
        const WAIT: &str = "wait = \"1s\"";
        for (name, one, two, second, expected) in [
            ("both hold", WAIT, "wait = \"1m\"", BOTH, true),
            ("a leaky bucket holds by itself", WAIT, "algorithm = \"leaky-bucket\"", BOTH, true),
            ("one does not hold", WAIT, "", BOTH, false),
            ("one is in shadow", WAIT, "wait = \"1s\"\nmode = \"shadow\"", BOTH, false),
            ("a route uses one of them", WAIT, WAIT, "[\"one\"]", false),
            ("no other route uses them", WAIT, WAIT, "[]", true),
            ("one is of this process", WAIT, "wait = \"1s\"\nscope = \"node\"", BOTH, false),
            (
                "some requests meet one",
                WAIT,
                "wait = \"1s\"\nexempt = { path = [\"/a\"] }",
                BOTH,
                false,
            ),
        ] {
            let plan = plan(one, two, second);
            let lines: Vec<_> = plan.limits.iter().map(|limit| limit.line).collect();
            assert_eq!(lines[0].is_some() && lines[0] == lines[1], expected, "{name}");
            assert_eq!(lines[0].or(lines[1]).is_some(), expected, "{name}");
            assert_eq!(lines[2], None, "{name}");
        }
    }
}
