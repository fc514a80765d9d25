// The style of the pages: light and dark by what the reader's system prefers, one column on a phone, no motion beyond a
// colour, and no file of anybody else. Contrasts are 4.5 : 1 and more in both.

export const STYLE = `
:root{color-scheme:light dark;--page:#f4f6f8;--card:#fff;--ink:#16202b;--soft:#4c5a69;--edge:#d3dae2;--link:#0b5cad;
--line:#0b6bcb;--area:#0b6bcb22;--good:#0b6e3b;--warn:#8a4b00;--bad:#b3161b;--goodback:#e2f3e9;--warnback:#fdf0dc;
--badback:#fde7e7;--model:#3559a8;--residents:#7a4ea3;--peak:#0e8a8a;--own:#3559a8;--others:#a86a14;--free:#c9d1da}
@media (prefers-color-scheme:dark){:root{--page:#10161d;--card:#18212b;--ink:#e6ecf2;--soft:#a9b6c4;--edge:#2d3a48;
--link:#7db8f5;--line:#62aef5;--area:#62aef522;--good:#6fd39a;--warn:#f0b35c;--bad:#ff8f8f;--goodback:#12301f;
--warnback:#35260d;--badback:#3a1618;--model:#6f93e6;--residents:#b48be0;--peak:#3fbcbc;--own:#6f93e6;--others:#dba04a;
--free:#3a4756}}
*{box-sizing:border-box}
html{scroll-padding-top:4rem}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
a{color:var(--link)}
a:focus-visible,button:focus-visible,input:focus-visible,summary:focus-visible,[tabindex]:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:4px}
.skip{position:absolute;left:-100rem}
.skip:focus{left:.5rem;top:.5rem;background:var(--card);padding:.5rem;z-index:2}
header{background:var(--card);border-bottom:1px solid var(--edge)}
header>div,main,footer{max-width:82rem;margin:0 auto;padding:.7rem 1rem}
header>div{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem 1.2rem}
header strong{font-size:1.1rem}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem}
nav a[aria-current]{color:var(--ink);font-weight:600;text-decoration:none}
form.search{margin-left:auto;display:flex;gap:.4rem;flex:1 1 16rem;max-width:28rem}
input{font:inherit;color:inherit;background:var(--page);border:1px solid var(--soft);border-radius:6px;padding:.35rem .55rem;min-width:0;width:100%}
button,.button{font:inherit;color:var(--link);background:var(--card);border:1px solid var(--link);border-radius:6px;padding:.35rem .7rem;cursor:pointer;text-decoration:none;white-space:nowrap;display:inline-block}
button.go{background:var(--link);color:var(--card)}
button.harm{background:var(--bad);border-color:var(--bad);color:var(--card)}
.small{padding:.1rem .5rem;font-size:.87rem}
h1{font-size:1.35rem;margin:.6rem 0}
h2{font-size:1.1rem;margin:1.4rem 0 .5rem}
h3,.card h2{font-size:1rem;margin:0}
.soft,small{color:var(--soft);font-size:.87rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;padding:0;margin:.6rem 0;list-style:none}
.figures li,.card,.notice{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:.7rem .9rem}
.figures b{display:block;font-size:1.35rem;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:.8rem;align-items:start}
.card p{margin:0}
.card{display:flex;flex-direction:column;gap:.55rem;min-width:0;overflow-wrap:anywhere}
.top{display:flex;flex-wrap:wrap;gap:.3rem .6rem;align-items:center;justify-content:space-between}
.state{border-radius:99px;padding:.05rem .6rem;font-size:.87rem;font-weight:600;white-space:nowrap}
.good{color:var(--good);background:var(--goodback)}
.warn{color:var(--warn);background:var(--warnback)}
.bad{color:var(--bad);background:var(--badback)}
.notices{list-style:none;padding:0;margin:.6rem 0;display:grid;gap:.5rem}
.notice{border-left:6px solid var(--warn)}
.notice.serious{border-left-color:var(--bad)}
.notice.fine{border-left-color:var(--good)}
.notice code{overflow-wrap:anywhere}
code{font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:.92em}
.lines{display:grid;grid-template-columns:repeat(3,1fr);gap:.6rem}
.lines figure{margin:0;min-width:0}
.lines figcaption{font-size:.82rem;color:var(--soft)}
.lines b{color:var(--ink);display:block;font-size:1rem}
svg{display:block;width:100%}
svg.line{height:40px;border-bottom:1px solid var(--edge)}
svg polyline{fill:none;stroke:var(--line);stroke-width:1.6;vector-effect:non-scaling-stroke}
svg .area{fill:var(--area)}
svg.bar{height:14px;border-radius:4px}
rect.model{fill:var(--model)}rect.residents{fill:var(--residents)}rect.peak{fill:var(--peak)}rect.own{fill:var(--own)}rect.others{fill:var(--others)}rect.free{fill:var(--free)}
.key{display:inline-block;width:.7rem;height:.7rem;border-radius:3px;margin-right:.3rem;vertical-align:-.05rem}
.key.model{background:var(--model)}.key.residents{background:var(--residents)}.key.peak{background:var(--peak)}.key.own{background:var(--own)}.key.others{background:var(--others)}.key.free{background:var(--free)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;padding:0;margin:.3rem 0 0;font-size:.82rem;color:var(--soft)}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--edge);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:.93rem}
caption{text-align:left;padding:.5rem .8rem;color:var(--soft);font-size:.87rem;max-width:calc(100vw - 2rem)}
th,td{text-align:left;padding:.4rem .8rem;border-top:1px solid var(--edge);vertical-align:top}
thead th,thead th.n{border-top:0;color:var(--soft);font-weight:600;font-size:.87rem;white-space:normal;vertical-align:bottom}
tbody th{white-space:nowrap}tbody th.long{white-space:normal;overflow-wrap:anywhere;min-width:9rem}
td .row{flex-wrap:nowrap}
.scroll th,.scroll td{padding:.4rem .6rem}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
details>summary{cursor:pointer;color:var(--link)}
details table{margin-top:.3rem}
details th,details td{padding:.12rem .5rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .8rem;margin:0;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
ul.plain{list-style:none;padding:0;margin:0;display:grid;gap:.25rem}
.row{display:flex;flex-wrap:wrap;gap:.4rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font-size:.9rem}
#live{font-size:.87rem;color:var(--soft)}
@media (max-width:40rem){.lines{gap:.4rem}form.search{max-width:none}th,td{padding:.35rem .5rem}.card,.figures li{padding:.6rem .7rem}}
@media (prefers-reduced-motion:no-preference){.state,.notice{transition:background-color .3s}}
`;
