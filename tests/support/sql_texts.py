"""SQL texts, valid and invalid, as people write them in pipelines: our parser and Spark's must agree on them."""

from __future__ import annotations

QUERIES = """
select * from input
SELECT *, total * 0.19 AS tax FROM input WHERE total > 0
select id, customer c, `region` as r from input;
select distinct region from input order by region desc nulls last limit 10
select region, count(*) as orders, sum(total) revenue from input group by region having count(*) > 1
select region, count(distinct customer, id) filter (where total > 0) from input group by 1
select * except (total) from input
select input.*, i.total from input, input i
with big as (select * from input where total > 1000) select * from big union all select * from input
with a(x, y) as (select id, total from input), b as (select x from a) select x from b
select a.id, b.total from input a join input b on a.id = b.id
select a.id from input a left outer join input b using (id) cross join input c
select id from input a left semi join input b on a.id = b.id
select id from input a natural join input b
select * from (select id, total from input) t where t.total between 1 and 10
select * from (select id as x from input) as t(y) where y is not null
select id, (select max(total) from input i where i.region = o.region) m from input o
select id from input where exists (select 1 from input b where b.id = input.id)
select id from input where region in ('eu', 'us') and region not in (select region from input)
select id from input where customer like 'A%' or customer not rlike '^B' or customer ilike any ('a', 'b')
select id from input where customer like 'a!%' escape '!'
select case when total > 0 then 'a' when total is null then 'b' else 'c' end as sign from input
select case region when 'eu' then 1 end from input
select cast(id as string), try_cast(customer as decimal(10, 2)), id::bigint, cast(at as timestamp_ntz) from input
select cast(null as array<struct<sku:string,n:int>>) items, cast(null as map<string, array<int>>) from input
select cast(at as date), date '2026-01-31', timestamp '2026-01-31 10:00:00', x'1F', at + interval 5 minutes from input
select at - interval '1' day, interval '1-2' year to month, interval 1 day 2 hours, at + interval -3 hours from input
select extract(year from at), substring(customer from 1 for 2), trim(both 'x' from customer), trim('a') from input
select position('a' in customer), position('a', customer), overlay(customer placing 'x' from 2) from input
select timestampadd(MINUTE, 5, at), datediff(day, at, now()), date_add(at, 3), datediff(at, at) from input
select transform(array(1, 2), x -> x + id), aggregate(array(1), 0, (acc, x) -> acc + x) from input
select filter(items, i -> i.n > 1), exists(items, x -> x is null), items[0].sku, items[0]['sku'] from input
select customer.address.city, struct(id as a, total), named_struct('a', id).a from input
select row_number() over (partition by region order by at desc) as n from input
select sum(total) over (order by at rows between unbounded preceding and current row) from input
select lag(total, 1) ignore nulls over (partition by id order by at) from input
select first(total ignore nulls), percentile_cont(0.5) within group (order by total) from input
select explode(items) as item, id from input
select id, item.sku from input lateral view explode(items) t as item
select id, p, item from input lateral view outer posexplode(items) t as p, item where p > 0
select not total > 0 and !(id = 1), -total, ~id, + 1, id % 2, id div 2, 'a' || 'b', id & 1 | 2 ^ 3 from input
select id <=> 1, id <> 2, id != 3, id == 4, id is distinct from 5, id << 2, id >> 1, id >>> 1 from input
select 1L, 2.5, 3e4, .5, 5., 6BD, 7D, 8S, 9Y, 1.5F, 'it''s', "double", 'a' 'b', r'raw\\d' from input
select date, time, value, key, timestamp, user, end, first, left, partition from input
select when, order, group, limit as l, on from input where order > 1
select current_date, current_timestamp(), current_timestamp, now() from input
select window(at, '1 minute'), window.start from input
select if(total > 0, 1, 0), coalesce(total, 0), nvl(customer, ''), left(customer, 2), right(customer, 2) from input
select id -- a comment
from input /* another
 one */ where total > 0
select from_json(customer, 'a int').a, get_json_object(customer, '$.x') from input
select id from input where total > (select avg(total) from input)
(select id from input) union (select id from input) order by id
select id from input minus select id from input intersect select id from input
select id, total from input group by all order by all
select region, sum(total) from input group by region with rollup
select a.id from (input a join input b on a.id = b.id)
select * from range(10) r
select * from input, lateral (select input.id + 1 as next) n
select count(*), count(1), max(struct(at, id)) from input
select id from input where (id, region) in ((1, 'a'), (2, 'b'))
select id from input sort by id
select id, total from input offset 3
select year(at), month(at), day(at), hour(at) from input
select map('a', 1)['a'], array(1, 2)[0], element_at(map('a', 1), 'a') from input
select customer as `a name with blanks`, `total` from input
select to_json(struct(*)) as value, cast(id as string) as key from input
select interval from input
select id from input where total is true or total is not unknown
select any_value(id) as any, max_by(id, at), collect_list(struct(id, at)) from input
select make_interval(0, 0, 0, 1), date_format(at, 'yyyy-MM'), at::date as day from input
select id, case when id in (1, 2) then struct(id) end.id from input
select /*+ broadcast(b) */ a.id from input a join input b on a.id = b.id
select * from input pivot (sum(total) for region in ('eu', 'us'))
select * from input tablesample (10 percent)
from input select id
from input |> where total > 0
values (1), (2)
table input
select id, sum(total) over w from input window w as (partition by id)
select region, sum(total) from input group by grouping sets ((region), ())
select region, sum(total) from input group by cube (region)
select listagg(customer, ',') within group (order by id) from input
select customer:name from input
select try_divide(1, 0), 1 / 0, mod(5, 2), pow(2, 3), round(total, 2) from input
select id as select_id, total as from_total from input
select array_sort(items, (a, b) -> case when a.n < b.n then -1 else 1 end) from input
select id from input where customer regexp 'a.b' and not customer between 'a' and 'b'
"""

WRONG_QUERIES = """
select * form input
select id form input
selct * from input
select * from
select from where
select *, from input
select id total region from input
select id, from input where
select id from input where total >
select id from input where total > 0)
select id from input where (total > 0
select id from input wehre total > 0
select id from input group region
select id from input order total
select id from input limit
select 'unfinished from input
select `unfinished from input
select id /* no end from input
select cast(id as strng) from input
select cast(id string) from input
select cast(id as array<int) from input
select case when id then 1 from input
select case id then 1 end from input
select id from input a join on a.id = b.id
select id from input union
select sum(total from input
select id from input where id in 1, 2
select id from input where id between 1
select id from input where id is 5
with a as select id from input select * from a
with a (select id from input) select * from
select id # 3 from input
select items[0 from input
select id from (select id from input
select id, total from input, where id > 1
insert into input select 1
drop table input
create table x as select 1
"""

EXPRESSIONS = """
total
total > 0
count(*)
sum(total * (1 - discount))
region in ('eu', 'us')
cast(cast(_key as string) as bigint)
customer is not null and length(customer) < 200
at
timestamp_millis(at_ms)
date_trunc('hour', at)
total > 0 as is_positive
concat_ws('-', region, customer)
approx_count_distinct(customer)
percentile_approx(total, 0.5)
kind = 'delete'
"""

WRONG_EXPRESSIONS = """
total >
count(*
total 0
region in 'eu'
cast(at as datetme)
total > 0 and
>= 5
sum(total))
a b c
"""


def lines(texts: str) -> list[str]:
    """One text a line; an unfinished line continues on the next."""
    joined: list[str] = []
    for line in texts.strip().splitlines():
        is_rest = joined and joined[-1].endswith(("-- a comment", "/* another"))
        if is_rest:
            joined[-1] += "\n" + line
        else:
            joined.append(line)
    return joined
