//! The routes of one path, by their conditions on a request's host and headers.

use hashbrown::HashMap;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::super::conditions::{Conditions, HostPattern};
use crate::request::value;

/// An index in one of the table's lists. 32 bits are enough: four billion routes fit into no memory.
pub(super) type ListIndex = u32;

/// The routes of one path, each by its host or one of its headers: a thousand hosts, or values of a header, are
/// searched as quickly as ten. The lists have indices in the table's list of routes, in the order of the ranks.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    /// The routes that name no host and no header.
    pub(super) any: RouteIndices,
    /// Most routes name no host and no header.
    pub(super) indexed: Option<Box<Indexed>>,
}

#[derive(Debug, Default)]
pub(super) struct Indexed {
    hosts: HashMap<ConfigText, RouteIndices>,
    /// The hosts that are below a name.
    below: HashMap<ConfigText, RouteIndices>,
    /// By the header's name and the normal form of its value.
    headers: HashMap<HeaderName, HashMap<ConfigText, RouteIndices>>,
}

/// Text of the configuration. It comes from the operator, so its hash need not resist attackers.
pub(super) type ConfigText = SmallVec<[u8; 24]>;

/// Indices in the table's list of routes.
type RouteIndices = SmallVec<[ListIndex; 4]>;

impl Leaf {
    pub(super) fn insert(&mut self, route: ListIndex, conditions: &Conditions) {
        if conditions.host.is_none() && conditions.headers.is_empty() {
            return self.any.push(route);
        }
        let indexed = self.indexed.get_or_insert_default();
        // The header that the fewest other routes have.
        let header = conditions.headers.iter().min_by_key(|it| indexed.of_header(it).len());
        let indices = match (&conditions.host, header) {
            (Some(host), Some(header))
                if indexed.of_header(header).len() < indexed.of_host(host).len() =>
            {
                indexed.of_header(header)
            }
            (Some(host), _) => indexed.of_host(host),
            (None, Some(header)) => indexed.of_header(header),
            (None, None) => &mut self.any,
        };
        indices.push(route);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        let indexed = self.indexed.iter().flat_map(|indexed| {
            let headers = indexed.headers.values().flat_map(HashMap::values);
            indexed.hosts.values().chain(indexed.below.values()).chain(headers)
        });
        self.any.iter().chain(indexed.flatten()).map(|route| index(*route))
    }
}

impl Indexed {
    fn of_host(&mut self, host: &HostPattern) -> &mut RouteIndices {
        match host {
            HostPattern::Exact(host) => self.hosts.entry(host.as_bytes().into()),
            HostPattern::Below(end) => self.below.entry(end.as_bytes().into()),
        }
        .or_default()
    }

    fn of_header(&mut self, (name, value): &(HeaderName, HeaderValue)) -> &mut RouteIndices {
        let values = self.headers.entry(name.clone()).or_default();
        values.entry(value::form(name, value).as_ref().into()).or_default()
    }

    /// Adds the lists of routes that may fit.
    pub(super) fn select<'l>(
        &'l self,
        host: &str,
        headers: Option<&HeaderMap>,
        lists: &mut SmallVec<[&'l [ListIndex]; 6]>,
    ) {
        lists.extend(self.hosts.get(host.as_bytes()).map(RouteIndices::as_slice));
        if !self.below.is_empty() {
            let ends = host.match_indices('.').filter_map(|(dot, _)| host.get(dot..));
            let below = ends.filter_map(|end| self.below.get(end.as_bytes()));
            lists.extend(below.map(RouteIndices::as_slice));
        }
        for (name, values) in &self.headers {
            match headers {
                Some(headers) => {
                    let found = headers.get_all(name).iter();
                    let found = found.filter_map(|it| values.get(value::form(name, it).as_ref()));
                    lists.extend(found.map(RouteIndices::as_slice));
                }
                None => lists.extend(values.values().map(RouteIndices::as_slice)),
            }
        }
    }
}

pub(super) fn list_index(index: usize) -> ListIndex {
    ListIndex::try_from(index).unwrap_or(ListIndex::MAX)
}

pub(super) fn index(list_index: ListIndex) -> usize {
    usize::try_from(list_index).unwrap_or(usize::MAX)
}
